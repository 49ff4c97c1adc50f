"""The error of captures."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class CaptureError(MemwatchError):
    """A capture file that cannot be written or read."""


class DamagedCaptureError(CaptureError):
    """The bytes of a capture have changed since they were written."""
