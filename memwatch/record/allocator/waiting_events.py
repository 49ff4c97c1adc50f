"""The allocator's events that wait for the flush that follows, so that one write of the file holds both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray

_MOST: Final = 50_000
"""More do not wait: threads may have made millions since the last flush, and to be written they are copied."""


class WaitingEvents:
    """Rows of the table `allocator`, in order."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = []

    def add(self, rows: IntArray) -> bool:
        """Add rows; return whether so many wait that they are to be written now."""
        self._rows.append(rows)
        return sum(map(len, self._rows)) >= _MOST

    def take(self) -> list[IntArray]:
        """Take all rows: as one array, or none."""
        if not self._rows:
            return []
        taken = [np.concatenate(self._rows)]  # first: if memory runs out, they stay
        self._rows = []
        return taken
