"""Rows of a table by the numbers in its columns, without a look at all other rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray


class Grouped:
    """The rows of a table, sorted once by one column."""

    def __init__(self, column: IntArray) -> None:
        self._rows = np.argsort(column, kind="stable")
        self._values = column[self._rows]

    def within(self, start: int, end: int) -> IntArray:
        """Return the rows whose value is at least `start` and below `end`, by value."""
        first, last = np.searchsorted(self._values, (start, end))
        return self._rows[first:last]


def different_rows(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the first row of each combination of values (at least -1), and the number of each row's combination.

    A sort of one number a row for each column: of a long run that is a fraction of what a sort of whole rows takes.
    """
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = column + 1
        number = np.unique(number * (values.max(initial=0) + 1) + values, return_inverse=True)[1]
    first: IntArray = np.unique(number, return_index=True)[1]
    return first, number
