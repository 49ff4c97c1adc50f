"""Values that a test keeps while a block is open, where its own calls do not lead to them.

A sample visits the objects that the variables of all running calls lead to. Kept in variables, the results and states
that a test compares would be most of that beside a small program, and the test would spend half of its time there.
"""

from __future__ import annotations

from typing import Any

_VALUES: list[Any] = []


class Kept(int):
    """Takes the place of a value: a number, which leads nowhere. Two are equal if their values are."""

    def __new__(cls, value: Any) -> Kept:
        _VALUES.append(value)
        return super().__new__(cls, len(_VALUES) - 1)

    @property
    def value(self) -> Any:
        return _VALUES[int(self)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and self.value == other.value

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.value)


def forget() -> None:
    """Drop all values, so that a test does not compare itself with another one."""
    _VALUES.clear()
