"""Kernel: the rotor dynamic program, which solves chains of stages for every amount of memory.

A table entry is the cheapest way to reverse the stages from `first` to `last` with `memory` slots. Either all that
stage `first` saves is kept, or the stages run forward without saving up to a stage `split`, whose input is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray


@with_twin(calls.fill)
def fill(
    costs: NDArray[np.float64], checkpoint: IntArray, saved: IntArray, slots: int
) -> tuple[NDArray[np.float64], IntArray]:
    """Return the cheapest way for every part of the chain and every amount of memory.

    Returns:
        The extra cost, infinite where memory does not suffice, and the choice: `first` where all that it saves
        is kept, otherwise `split`.
    """
    length = len(costs)
    best = np.full((length, length, slots + 1), np.inf)
    choice = np.full((length, length, slots + 1), -1, np.int64)
    for span in range(length):
        for first in range(length - span):
            last = first + span
            for memory in range(slots + 1):
                value, chosen = np.inf, -1
                if saved[first] <= memory:
                    value, chosen = 0.0, first
                    if span > 0:
                        value = best[first + 1, last, memory - saved[first]]
                forward = 0.0
                for split in range(first + 1, last + 1):
                    forward += costs[split - 1]
                    if checkpoint[split - 1] > memory:
                        continue
                    # the stages up to the split run again when their turn comes
                    price = (
                        forward
                        + best[split, last, memory - checkpoint[split - 1]]
                        + best[first, split - 1, memory]
                    )
                    if price < value:
                        value, chosen = price, split
                best[first, last, memory] = value
                choice[first, last, memory] = chosen
    return best, choice
