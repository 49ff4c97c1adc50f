"""What torch made of data that Python gave, as `torch.tensor(list)` does: below every op, but its line is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

OF_DATA: Final = "data"
"""Stands where the name of an op would."""


class Lifts(NamedTuple):
    """Per storage: stack and module of the call that made it of Python's data; -1 for all others and at the end."""

    stack: IntArray
    module: IntArray
    is_lift: IntArray


def lifts(capture: Capture, storages: int) -> Lifts:
    """Return where each storage was made of Python's data, for numbers of storages that may be -1."""
    rows = capture.tables["lifts"]
    known = rows["storage"] < storages
    found = Lifts(*(np.full(storages + 1, NONE, dtype=np.int64) for _ in range(2)), np.zeros(storages + 1, bool))
    storage = rows["storage"][known]
    found.stack[storage], found.module[storage] = rows["stack"][known], rows["module"][known]
    found.is_lift[storage] = True
    return found
