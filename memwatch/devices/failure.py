"""What the error of an allocator tells of where memory ran out."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch._torch.workers import is_raised_again
from memwatch.devices.out_of_memory import asked_bytes
from memwatch.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

_RAISED_ELSEWHERE: Final = frozenset(
    {("multiprocessing.pool", "RemoteTraceback"), ("concurrent.futures.process", "_RemoteTraceback")}
)
"""Causes of an error that a pool brings from another process, by module and name of their class."""


class Failure(NamedTuple):
    """What is known from an error.

    Attributes:
        asked_bytes: what the allocator was asked for, if it said so.
        lines: `file:line` of the calls that it came through.
        by_limit: whether the limit that the program asked for was passed, and no allocator failed.
        in_worker: whether a worker raised it, another process or thread, and it was raised here again.
    """

    asked_bytes: int | None
    lines: frozenset[str]
    by_limit: bool
    in_worker: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what an error tells."""
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
