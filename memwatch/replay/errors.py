"""The errors of recording for replay, planning from a capture, and replaying."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class UnsupportedOpError(MemwatchError):
    """An op of the program that cannot be run again from what was recorded; names the op and its line."""


class ReplayError(MemwatchError):
    """A replay that had to stop: an op gave another value or shape than it did when it was recorded."""
