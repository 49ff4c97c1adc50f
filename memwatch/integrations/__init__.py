"""memwatch where people train: callbacks for transformers and lightning, a context manager for accelerate.

Each module imports its library, so none is imported from here.
"""
