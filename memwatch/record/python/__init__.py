"""The recorder written in Python. It works wherever torch works, and it can record the arguments for a replay."""

from memwatch.record.python.recorder import BACKEND

__all__ = ["BACKEND"]
