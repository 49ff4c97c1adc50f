"""What a capture has from an imported memory snapshot: the call stack of each allocation, without an op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_ALLOC: Final = "alloc"


def imported_stacks(capture: Capture, storages: int) -> IntArray:
    """Return the stack of the call that allocated each storage, -1 where none was imported, shape (storages,)."""
    stacks = np.full(storages, NONE, dtype=np.int64)
    for name in ("blocks", "history"):  # the history says which call was the last at an address; it wins
        rows = capture.tables[name]
        chosen = rows["storage"] != NONE
        if name == "history":
            chosen &= np.array(capture.text(rows["action"]), dtype=object) == _ALLOC
        stacks[rows["storage"][chosen]] = rows["stack"][chosen]
    return stacks
