"""The errors of recording for replay, planning from a capture, and replaying."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class UnsupportedOpError(MemwatchError):
    """The recording is not enough to run an op again; the message names the op and its line."""


class ReplayError(MemwatchError):
    """A replay had to stop: an op failed, or returned another value or shape than when it was recorded."""
