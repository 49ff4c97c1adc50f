"""The base classes of the errors that memwatch raises, and notes on the errors of the user's program.

Each message of a memwatch error contains the offending value and the next thing to do.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemwatchError(Exception):
    """Base of every error that memwatch raises on purpose."""


class OptionError(MemwatchError, ValueError):
    """An invalid option, such as a way or a device that does not exist. The command line exits with 2."""


class DrawError(MemwatchError):
    """The picture of a leak could not be made."""


class MemoryLimitError(MemwatchError):
    """The live bytes of a device went above the limit of a `profile(limit_bytes=...)` block.

    Attributes:
        device: the device.
    """

    device: str = ""


def add_note(error: BaseException, text: str) -> None:
    """Have a text shown below the traceback of an error; Python 3.10 shows none, so it is printed there."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        sys.stderr.write(f"{text}\n")


def linked_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that are its cause or its context, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [link.__cause__, link.__context__]


class CaptureError(MemwatchError):
    """A capture file that cannot be written or read."""


class DamagedCaptureError(CaptureError):
    """The bytes of a capture have changed since they were written."""


class UnsupportedOpError(MemwatchError):
    """The recording is not enough to run an op again; the message names the op and its line."""


class ReplayError(MemwatchError):
    """A replay had to stop: an op failed, or returned another value or shape than when it was recorded."""
