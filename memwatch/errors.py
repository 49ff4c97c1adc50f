"""The errors a user of memwatch can see; every message holds the offending value and the next thing to do."""

from __future__ import annotations


class MemwatchError(Exception):
    """Base of every error that memwatch raises on purpose."""


class MemoryLimitError(MemwatchError):
    """The live bytes of a device went above the limit of a `profile(limit_bytes=...)` block.

    Attributes:
        device: the device.
    """

    device: str = ""
