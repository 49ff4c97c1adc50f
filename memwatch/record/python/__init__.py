"""The recorder written in Python: it works wherever torch does, and hands on the arguments that a replay needs."""

from memwatch.record.python.recorder import BACKEND

__all__ = ["BACKEND"]
