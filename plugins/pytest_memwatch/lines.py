"""Find the lines that made leaked tensors, and decide in which tests of `--memwatch-leaks=all` to record them.

Recording them takes a dispatch mode and a few microseconds per op, so a clean test runs without it. Once a test
leaves a tensor with an unknown line, the next tests run with it: one cause often shows in many neighbouring tests. If
a profile of the same test recorded the tensors, its lines are used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memwatch.leaks import Leak
    from memwatch.reading import Reading


MOST_TESTS: Final = 20
MOST_OPS: Final = 20_000
"""Tests in which the line of one cause is looked for, and ops in them: half a second's work, or one test's."""

_GROWTH: Final = "growth"
"""Stands among the causes for a tensor that may have become larger: only what it was made of tells."""


class _Left(NamedTuple):
    """How far a search goes on."""

    tests: int = MOST_TESTS
    ops: int = MOST_OPS


class LineSearch:
    """The leaks so far whose lines only a look at every op would show."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._grown: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the next test is to note lines."""
        return any(left.tests > 0 and left.ops > 0 for left in self._left.values())

    def learn(self, leaks: Iterable[Leak], *, noted_ops: int | None, may_have_grown: bool) -> None:
        """Learn from the leaks of one test.

        Args:
            leaks: its leaks.
            noted_ops: number of its ops whose lines were noted; None if lines were not noted.
            may_have_grown: True if it may have replaced a smaller tensor by a larger one.
        """
        if noted_ops is not None:
            self._left = {
                what: _Left(left.tests - 1, left.ops - noted_ops) for what, left in self._left.items()
            }
        if may_have_grown:
            self._left.setdefault(_GROWTH, _Left())
        for leak in leaks:
            if leak.site is None:
                self._left.setdefault(leak.cause, _Left())
            else:
                self._left[leak.cause] = _Left(0, 0)
            if leak.grows:
                self._left[_GROWTH] = _Left()

    def is_first_growth(self, leak: Leak) -> bool:
        """Return True for a tensor that became larger in one test so far, as scratch memory may."""
        if not leak.grows or leak.cause in self._grown:
            return False
        self._grown.add(leak.cause)
        self._left[_GROWTH] = _Left()
        return True


Line = tuple[str, int, str]
"""File, line and function."""
Lines = tuple[Line | None, Line | None]
"""The line that made a storage, and the one that called its function."""


def with_lines(leaks: Iterable[Leak], readings: Sequence[Reading]) -> list[Leak]:
    """Return leaks with their lines, of those where one line made every storage of the size that the test left."""
    return [leak if leak.site or leak.grows else _with_line(leak, readings) for leak in leaks]


def _with_line(leak: Leak, readings: Sequence[Reading]) -> Leak:
    from memwatch.words.leaks import site_phrase

    found = {lines for reading in readings for lines in _lines_of_size(leak, reading)}
    sites = {site for site, _ in found}
    site = sites.pop() if len(sites) == 1 else None
    if site is None:
        return leak
    callers = {caller for _, caller in found}
    caller = callers.pop() if len(callers) == 1 else None
    return replace(leak, site=site_phrase(*site), caller=None if caller is None else site_phrase(*caller))


def _lines_of_size(leak: Leak, reading: Reading) -> Iterator[Lines]:
    """Yield the lines of the storages that are as large as the leak's first one, and were not freed in the test."""
    storages = reading.storages
    made = (storages["birth_event"] >= 0) & (storages["device"] == leak.device)
    fitting = storages[made & (storages["nbytes"] == leak.first_bytes)]
    if leak.kind == "retained":  # the profile goes on while the search for leaks frees the rest
        fitting = fitting[fitting["death_event"] < 0]
    for stack in fitting["stack"].unique():
        yield _lines(reading.stack(int(stack)))


def _lines(frames: Sequence[Any]) -> Lines:
    """Return the line that made a storage and the line that called its function, without the runner's."""
    from memwatch.heap.frames import is_test_runner_code
    from memwatch.own_code import is_memwatch_code

    lines: list[Line] = [frame[:3] for frame in frames if frame[3] and not is_memwatch_code(frame[0])]
    callers = [line for line in lines[1:2] if not is_test_runner_code(line[0])]
    return lines[0] if lines else None, callers[0] if callers else None
