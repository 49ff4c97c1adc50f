"""Recognise an out-of-memory error of each allocator, and read from its text where memory ran out."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from memwatch._torch.workers import is_raised_again
from memwatch.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator


NOTE_KIND: Final = "out of memory"
"""The kind of the notes about an allocator that had no memory left: the bytes that it held then."""
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WORDS: Final = "allocate memory"
"""The message of c10's allocator of the host, in a plain RuntimeError."""


_ASKED: Final = re.compile(r"[Tt]ried to allocate ([\d.]+) ?([KMGT]?i?B|bytes)")
"""The requested size in the messages of allocators: the host's, CUDA's, other accelerators'."""


def asked_bytes(error: BaseException) -> int | None:
    """Return the requested bytes from an allocator's error message, as it rounds them, or None."""
    found = _ASKED.search(str(error))
    if found is None:
        return None
    count, unit = found.groups()
    return int(float(count) * _UNITS.get(unit, 1))


def is_of_host(error: BaseException) -> bool:
    """Return True where the memory of the host ran out."""
    return not isinstance(error, torch.OutOfMemoryError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the error of an allocator that had no memory left, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _WORDS in str(error)


_RAISED_ELSEWHERE: Final = frozenset(
    {("multiprocessing.pool", "RemoteTraceback"), ("concurrent.futures.process", "_RemoteTraceback")}
)
"""Causes of an error that a pool brings from another process, by module and name of their class."""


class Failure(NamedTuple):
    """The facts in an out-of-memory error.

    Attributes:
        asked_bytes: the requested bytes, if the allocator's message has them.
        lines: `file:line` of the calls in its traceback.
        by_limit: whether it comes from the program's own limit. Then no allocator failed.
        in_worker: whether a worker process or thread raised it first.
    """

    asked_bytes: int | None
    lines: frozenset[str]
    by_limit: bool
    in_worker: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the facts in an error."""
        by_limit = isinstance(error, MemoryLimitError)
        calls = list(traceback.walk_tb(error.__traceback__))
        return cls(
            None if by_limit else asked_bytes(error),
            frozenset(f"{frame.f_code.co_filename}:{line}" for frame, line in calls),
            by_limit,
            (bool(calls) and is_raised_again(calls[-1][0].f_code)) or any(map(_is_elsewhere, _causes(error))),
        )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause, seen = error.__cause__, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _is_elsewhere(error: BaseException) -> bool:
    return (type(error).__module__, type(error).__name__) in _RAISED_ELSEWHERE
