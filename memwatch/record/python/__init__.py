"""The recorder written in Python: it works wherever torch does, and keeps the arguments that a replay needs."""
