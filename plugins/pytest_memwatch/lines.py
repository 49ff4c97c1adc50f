"""Decide in which tests of `--memwatch-leaks=all` to note the lines that make tensors.

Noting them takes a dispatch mode and a few microseconds per op, so a clean test goes without. Once a test has left
something that only this can tell, the next tests have it: one cause often shows in many tests, in neighbours above all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.leaks import Leak

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
    """What of the leaks so far only a look at every op would tell."""

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._grown: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the next test is to note lines."""
        return any(left.tests > 0 and left.ops > 0 for left in self._left.values())

    def learn(self, leaks: Iterable[Leak], *, noted_ops: int | None, may_have_grown: bool) -> None:
        """Take in what one test left.

        Args:
            leaks: its leaks.
            noted_ops: how many ops were looked at in it; None if lines were not noted.
            may_have_grown: True if it put a larger tensor in the place of a smaller one, as far as is known.
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
