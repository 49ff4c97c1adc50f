"""The simple tables of a recording: rows of integers, interned texts, deaths that wait, and the number of ops."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self


class Table(Protocol):
    """The rows of one table. Python keeps them in a list, C++ in an array."""

    def __iadd__(self, row: tuple[int, ...], /) -> Self:
        """Append one row: its integers, in the order of the table's columns."""

    def take(self) -> Any:
        """Remove and return all present rows, as one flat run of integers."""


class Rows(list[int]):
    """The rows of one table, in a list."""

    def take(self) -> list[int]:
        """Remove and return the present rows. Rows that another thread appends meanwhile stay for the next call."""
        count = len(self)
        taken = self[:count]
        del self[:count]
        return taken


OpCounter: TypeAlias = list[int]
"""A list of one element: the number of ops that have started. It is also the number of the next op.

It is a plain list because it is read several times for every op. Python indexes a list without a call, and C++ reads
the element in place.
"""


def new_op_counter() -> OpCounter:
    """Return the counter of a block before its first op."""
    return [0]


class Strings:
    """Number every distinct text, in order of first sight."""

    __slots__ = ("_first_sight", "_ids", "texts")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._first_sight = threading.RLock()  # a flush in another thread numbers texts too
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        """Return the number of `text`, a new one at first sight."""
        number = self._ids.get(text)
        return self._at_first_sight(text) if number is None else number

    def _at_first_sight(self, text: str) -> int:
        with self._first_sight:
            number = self._ids.get(text)
            if number is None:
                number = self._ids[text] = len(self.texts)
                self.texts += (text,)  # not a call, because a signal handler may raise at any call
            return number


class Deaths(Protocol):
    """Weak references whose callback ran, in the order of the deaths."""

    @property
    def append(self) -> Callable[[Any], None]:
        """Note a death, in whichever thread it happens. This is a C function."""

    def clear(self) -> None:
        """Remove all."""

    def __len__(self) -> int:
        """Count them."""

    def __iter__(self) -> Iterator[Any]:
        """Yield them, oldest death first."""
