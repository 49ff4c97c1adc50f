"""The error of a file that is no memory snapshot."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class SnapshotError(MemwatchError):
    """A file that is no memory snapshot, or that holds more than plain data."""
