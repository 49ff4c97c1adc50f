"""Columns of integers in little memory: each chunk of a column is a base and the narrowest offsets that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = NDArray[np.int64]
_NARROW = (np.uint8, np.uint16, np.uint32)


class PackedTable:
    """An append-only table of int64 columns."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._chunks: list[list[tuple[int, NDArray[Any]]]] = []
        self.rows = 0

    def append(self, rows: IntArray) -> None:
        """Append rows, an int64 array of shape (n, width)."""
        if not len(rows):
            return
        self._chunks.append([_narrow(rows[:, index]) for index in range(self._width)])
        self.rows += len(rows)

    def columns(self) -> list[IntArray]:
        """Return the columns as int64 arrays."""
        if not self._chunks:
            return [np.empty(0, dtype=np.int64) for _ in range(self._width)]
        return [
            np.concatenate([chunk[index][1].astype(np.int64) + chunk[index][0] for chunk in self._chunks])
            for index in range(self._width)
        ]


def as_rows(flat: Sequence[int] | IntArray, width: int) -> IntArray:
    """Return a flat list of integers, row after row, as an int64 array of shape (n, width)."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)


def _narrow(column: IntArray) -> tuple[int, NDArray[Any]]:
    base, top = int(column.min()), int(column.max())
    for dtype in _NARROW:
        if top - base <= np.iinfo(dtype).max:
            return base, (column - base).astype(dtype)
    return 0, column.copy()
