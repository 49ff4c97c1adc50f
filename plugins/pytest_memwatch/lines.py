"""Decide in which tests of `--memwatch-leaks=all` to note the lines that make tensors.

Noting them takes a dispatch mode and a few microseconds per op, so a clean test goes without. Once a test has left
something that only this can tell, the next tests have it: one cause often shows in many tests, in neighbours above all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.leaks import Leak

MOST_TESTS: Final = 20
"""Tests in which the line of one cause is looked for."""

_GROWTH: Final = "growth"
"""Stands among the causes for a tensor that may have become larger: only what it was made of tells."""


class LineSearch:
    """What of the leaks so far only a look at every op would tell."""

    def __init__(self) -> None:
        self._tests_left: dict[str, int] = {}
        self._grown: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the next test is to note lines."""
        return any(left > 0 for left in self._tests_left.values())

    def learn(self, leaks: Iterable[Leak], *, noted: bool, may_have_grown: bool) -> None:
        """Take in what one test left.

        Args:
            leaks: its leaks.
            noted: True if lines were noted in it.
            may_have_grown: True if it put a larger tensor in the place of a smaller one, as far as is known.
        """
        if noted:
            self._tests_left = {what: left - 1 for what, left in self._tests_left.items()}
        if may_have_grown:
            self._tests_left.setdefault(_GROWTH, MOST_TESTS)
        for leak in leaks:
            if leak.site is None:
                self._tests_left.setdefault(leak.cause, MOST_TESTS)
            else:
                self._tests_left[leak.cause] = 0
            if leak.grows:
                self._tests_left[_GROWTH] = MOST_TESTS

    def is_first_growth(self, leak: Leak) -> bool:
        """Return True for a tensor that became larger in one test so far, as scratch memory may."""
        if not leak.grows or leak.cause in self._grown:
            return False
        self._grown.add(leak.cause)
        self._tests_left[_GROWTH] = MOST_TESTS
        return True
