"""Compressed sparse rows: many short lists of integers in two arrays, which kernels can read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IntArray: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Rows of integers; row `i` is ``indices[indptr[i]:indptr[i + 1]]``."""

    indptr: IntArray
    indices: IntArray

    @classmethod
    def from_rows(cls, rows: Sequence[Iterable[int]]) -> Csr:
        """Return these rows, with the order inside each row kept."""
        packed = [list(row) for row in rows]
        lengths = np.fromiter((len(row) for row in packed), dtype=np.int64, count=len(packed))
        indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        indices = np.fromiter(chain.from_iterable(packed), dtype=np.int64, count=int(indptr[-1]))
        return cls(_frozen(indptr), _frozen(indices))

    @classmethod
    def from_pairs(cls, rows: IntArray, columns: IntArray, num_rows: int) -> Csr:
        """Return the rows of (row, column) pairs; duplicates are dropped and each row is sorted."""
        if len(rows):
            order = np.lexsort((columns, rows))
            rows, columns = rows[order], columns[order]
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
            rows, columns = rows[new], columns[new]
        indptr = np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int64)
        return cls(_frozen(indptr), _frozen(columns.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, index: int) -> IntArray:
        """Return row `index` as a read-only view."""
        return self.indices[self.indptr[index] : self.indptr[index + 1]]

    def row_ids(self) -> IntArray:
        """Return the row of every entry, as long as `indices`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths())

    def lengths(self) -> IntArray:
        """Return the number of entries of every row."""
        return np.diff(self.indptr)

    def transpose(self, num_columns: int) -> Csr:
        """Return for every column the sorted rows that hold it."""
        return Csr.from_pairs(self.indices, self.row_ids(), num_columns)

    def sum_per_row(self, weights: IntArray) -> IntArray:
        """Return for every row the sum of ``weights[entry]`` over its entries."""
        total = np.concatenate(([0], np.cumsum(weights[self.indices])))
        return np.asarray(total[self.indptr[1:]] - total[self.indptr[:-1]], dtype=np.int64)


def _frozen(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array
