"""A table's rows as one flat run of integers, appended by the recorders and taken by the session's flush."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self


class Table(Protocol):
    """The rows of one table, wherever they are kept: here in a list, in C++ in an array."""

    def __iadd__(self, row: tuple[int, ...], /) -> Self:
        """Append one row: its integers, in the order of the table's columns."""

    def take(self) -> Any:
        """Take all rows that are here now, as one flat run of integers."""


class Rows(list[int]):
    """The rows of one table, in a list."""

    def take(self) -> list[int]:
        """Take the rows that are here now; those appended meanwhile by another thread stay for the next time."""
        count = len(self)
        taken = self[:count]
        del self[:count]
        return taken
