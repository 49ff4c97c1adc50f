"""What resizes did to fake storages: no allocator tells of it, so the recorded resizes alone end and begin blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.analysis.facts.deaths import LIVES
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.capture.packed import Columns, IntArray


def until_resized(resizes: Columns, births: Columns, died_ns: IntArray) -> tuple[IntArray, dict[str, Any]]:
    """Return when the first block of each storage ended, and the blocks that fake storages got by resizes.

    Args:
        resizes: the recorded table.
        births: the table, in the order of the storages.
        died_ns: when each storage died, nanoseconds, `LIVES` if that was not seen.

    Returns:
        The ends of the first blocks, shape (storages,), and the columns of the later blocks.
    """
    of_fakes = np.flatnonzero(births["address"][resizes["storage"]] == 0)
    storage, time_ns = resizes["storage"][of_fakes], resizes["time_ns"][of_fakes]
    order = np.lexsort((time_ns, storage))
    storage, time_ns, nbytes = storage[order], time_ns[order], resizes["nbytes"][of_fakes][order]
    is_first, is_last = np.ones(len(storage), dtype=bool), np.ones(len(storage), dtype=bool)
    is_first[1:] = is_last[:-1] = storage[1:] != storage[:-1]
    ends_ns = np.where(is_last, died_ns[storage], np.append(time_ns[1:], LIVES))
    first_ns = died_ns.copy()
    first_ns[storage[is_first]] = np.minimum(time_ns[is_first], died_ns[storage[is_first]])
    made = nbytes > 0
    count = int(made.sum())
    none = np.full(count, NONE, dtype=np.int32)
    storage, ends_ns = storage[made], ends_ns[made]
    return first_ns, {
        "storage": storage,
        "nbytes": nbytes[made],
        "device": births["device"][storage],
        "address": np.zeros(count, dtype=np.int64),
        "origin": births["origin"][storage],
        "thread": none,
        "op": none,
        "birth_ns": time_ns[made],
        "death_ns": np.where(ends_ns == LIVES, NONE, ends_ns),
        "counted": np.ones(count, dtype=bool),
        "birth_order": none,
        "death_order": none,
    }
