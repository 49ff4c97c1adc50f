"""The errors with which the plugin fails a test."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class PeakError(MemwatchError, AssertionError):
    """The body of a test added more memory than its limit, or than its baseline, allows."""


class FindingsError(MemwatchError, AssertionError):
    """The body of a test held memory that it could free or avoid."""


class FixtureError(MemwatchError):
    """A test read a peak from the `memwatch` fixture before it measured one."""
