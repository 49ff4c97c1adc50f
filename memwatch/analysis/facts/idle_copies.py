"""Copies that lie idle while an iteration runs: the best weights so far, what a program will compare with later.

What is made between two iterations, and outlives the next whole one that does not use it, is kept for a later one. A
batch is used by the iteration that it is made for, and what that computes dies in the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


def idle_copies(
    capture: Capture, allocations: Allocations, last_op: IntArray, ends_ns: IntArray
) -> NDArray[np.bool_]:
    """Return which allocations were made between iterations and outlive the next, whose calls and steps pass them by.

    Args:
        capture: what was recorded.
        allocations: every piece of memory.
        last_op: the last op that used each, -1 for none.
        ends_ns: when iterations end.
    """
    calls, started_ns = capture.tables["calls"], capture.tables["ops"]["start_ns"]
    outermost = calls["start_op"][(calls["depth"] == 0) & (calls["start_op"] < len(started_ns))]
    ends_ns, called_ns = np.sort(ends_ns), np.sort(started_ns[outermost])
    if not len(ends_ns) or not len(called_ns):
        return np.zeros(len(allocations), dtype=bool)
    never = np.iinfo(np.int64).max
    # when each iteration begins in earnest: its first call of a module, if it has one
    first = np.searchsorted(called_ns, np.append(0, ends_ns))
    begins_ns, ends_ns = np.append(called_ns, never)[first], np.append(ends_ns, never)
    begins_ns = np.where(begins_ns < ends_ns, begins_ns, 0)
    iteration = np.searchsorted(ends_ns, allocations.birth_ns, side="right")
    death_ns = np.where(allocations.death_ns == NONE, never, allocations.death_ns)
    is_used = (last_op != NONE) & (last_op < len(started_ns))
    last_ns = np.where(is_used, started_ns[np.where(is_used, last_op, 0)], 0)
    found: NDArray[np.bool_] = (allocations.origin != BASELINE) & (death_ns > ends_ns[iteration])
    found &= np.maximum(allocations.birth_ns, last_ns) < begins_ns[iteration]
    return found
