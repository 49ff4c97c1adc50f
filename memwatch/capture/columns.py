"""The columns of one table, kept as chunks until somebody asks for a column.

A reader of five million ops needs a few columns of them. So a column is decoded when it is first asked for, and its
chunks go then. What it refers to says how wide its integers are: numbers of rows are never large, times and bytes are.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.chunks import Chunk, decode, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from memwatch.capture.packed import IntArray
    from memwatch.capture.table import Column, Table

_NARROW: Final = (np.int8, np.int32)
_READ_ONCE: Final = ("allocator", "births", "deaths")
"""Tables that are joined to others and then needed no more: their columns go when nobody uses them."""


class ChunkedTable(Mapping[str, "IntArray"]):
    """An append-only table of integer columns in little memory, read as a mapping from names to arrays."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._chunks: dict[str, list[Chunk]] = {column.name: [] for column in table.columns}
        self._bounds: dict[str, tuple[int, int]] = {}
        self._is_read_once = table.name in _READ_ONCE
        self._decoded: MutableMapping[str, IntArray] = (
            weakref.WeakValueDictionary() if self._is_read_once else {}
        )
        self.rows = 0

    def append(self, rows: IntArray) -> None:
        """Append rows, an int64 array of shape (n, width)."""
        if len(rows):
            self.append_chunks(encoded(rows))

    def append_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Append rows as chunks, one for each column in order."""
        for name, chunk in zip(self._table.names, chunks, strict=True):
            low, high = self._bounds.get(name, (chunk.low, chunk.high))
            self._bounds[name] = min(low, chunk.low), max(high, chunk.high)
            self._chunks[name].append(chunk)
        self.rows += chunks[0].rows

    def joined(self, rest: ChunkedTable) -> ChunkedTable:
        """Return a table of these rows and the rest; no column of either was asked for yet."""
        other = ChunkedTable(self._table)
        for chunks in (*self.chunks(), *rest.chunks()):
            other.append_chunks(chunks)
        return other

    def chunks(self) -> list[tuple[Chunk, ...]]:
        """Return the chunks: of each run of rows that was appended one for each column."""
        return list(zip(*self._chunks.values(), strict=True))

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest value of a column, 0 where there are no rows."""
        return self._bounds.get(name, (0, 0))

    def __getitem__(self, name: str) -> IntArray:
        """Return a column."""
        values = self._decoded.get(name)
        if values is None:
            values = self._decoded[name] = self._decode(name)
        return values

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the columns, in order."""
        return iter(self._chunks)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self._chunks)

    def _decode(self, name: str) -> IntArray:
        column = next(column for column in self._table.columns if column.name == name)
        values: NDArray[Any] = np.empty(self.rows, dtype=_dtype(column, self.bounds(name)))
        start = 0
        for chunk in self._chunks[name]:
            decode(chunk, values[start : start + chunk.rows])
            start += chunk.rows
        if not self._is_read_once:
            self._chunks[name] = []
        return values


class Mapped(Mapping[str, "IntArray"]):
    """A table in which one column follows from the recorded one; each column is made when it is first asked for.

    Args:
        table: the recorded table.
        name: the column.
        change: returns its values for the recorded ones.
    """

    def __init__(
        self, table: Mapping[str, IntArray], name: str, change: Callable[[IntArray], IntArray]
    ) -> None:
        self._table, self._name, self._change = table, name, change
        self._values: list[IntArray] = []

    def __getitem__(self, name: str) -> IntArray:
        """Return a column."""
        if name != self._name:
            return self._table[name]
        if not self._values:
            self._values.append(self._change(self._table[name]))
        return self._values[0]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the columns, in order."""
        return iter(self._table)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self._table)


def _dtype(column: Column, bounds: tuple[int, int]) -> type[np.signedinteger[Any]]:
    """Return the type of a column's integers: numbers of rows and of choices stay narrow in every sum and product."""
    if column.refers is None:
        return np.int64
    for dtype in _NARROW if column.refers.choices else _NARROW[1:]:
        if np.iinfo(dtype).min <= bounds[0] and bounds[1] <= np.iinfo(dtype).max:
            return dtype
    return np.int64
