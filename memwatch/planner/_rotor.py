"""Kernel: the rotor dynamic program over (first stage, last stage, memory)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner._numba import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray


@compiled
def fill(
    costs: NDArray[np.float64], checkpoint: IntArray, saved: IntArray, slots: int
) -> tuple[NDArray[np.float64], IntArray]:
    """Solve every sub-chain for every amount of memory.

    Returns:
        The extra cost, infinite where the memory does not suffice, and the choice made: the first stage
        itself when all it saves is kept, otherwise the stage to run up to and continue from.
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
