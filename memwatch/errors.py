"""The errors a user of memwatch can see; every message holds the offending value and the next thing to do."""

from __future__ import annotations


class MemwatchError(Exception):
    """Base of every error that memwatch raises on purpose."""


class OptionError(MemwatchError, ValueError):
    """An option that means nothing, such as a way or a device that does not exist. The command line exits with 2."""


class MemoryLimitError(MemwatchError):
    """The live bytes of a device went above the limit of a `profile(limit_bytes=...)` block.

    Attributes:
        device: the device.
    """

    device: str = ""
