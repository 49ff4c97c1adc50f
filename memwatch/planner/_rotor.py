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
    length, memory = len(costs), np.arange(slots + 1)
    best = np.full((length, length, slots + 1), np.inf)
    choice = np.full((length, length, slots + 1), -1, np.int64)
    for span in range(length):
        first = np.arange(length - span)
        last, row = first + span, first[:, None]
        room = memory - saved[first][:, None]
        value = best[row + 1, last[:, None], np.maximum(room, 0)] if span else np.zeros(room.shape)
        value = np.where(room < 0, np.inf, value)
        chosen = np.where(room < 0, -1, row)
        forward = np.zeros(len(first))
        for step in range(1, span + 1):
            split = first + step
            forward = forward + costs[split - 1]
            room = memory - checkpoint[split - 1][:, None]
            # the stages up to the split run again when their turn comes
            late = best[split[:, None], last[:, None], np.maximum(room, 0)]
            price = forward[:, None] + late + best[first, split - 1]
            is_better = (room >= 0) & (price < value)
            value, chosen = np.where(is_better, price, value), np.where(is_better, split[:, None], chosen)
        best[first, last], choice[first, last] = value, chosen
    return best, choice
