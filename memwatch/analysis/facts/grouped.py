"""Rows of a table by the number in one of its columns, without a look at all other rows."""

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
