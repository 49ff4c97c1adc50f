"""Kernel: simulated annealing over orders; single ops move within their legal range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._random import random_below
from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order._walk import legal_range, move, new_walk, price, retouch, untouch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


class Cooling(NamedTuple):
    """Length, target and temperatures of one run of the annealing."""

    num_moves: int
    target_bytes: int  # bytes above it count as overflow
    hot_bytes: float  # temperature at the start, in bytes of overflow
    cold_bytes: float  # temperature at the end
    farthest: int  # positions an op moves at most


def hot_positions(level: IntArray, target: int, found: IntArray) -> int:
    """Write the positions above the target to `found`; return how many there are."""
    count = 0
    for position in range(len(level)):
        if level[position] > target:
            found[count] = position
            count += 1
    return count


def propose(
    state: NDArray[np.uint64], hot: IntArray, num_hot: int, num_ops: int, farthest: int
) -> tuple[int, int]:
    """Return a random position, more often near an overflow, and a random distance, more often a short one."""
    reach = 1 + random_below(state, 1 + random_below(state, farthest))
    if num_hot and random_below(state, 4):
        near = hot[random_below(state, num_hot)] + random_below(state, 2 * reach + 1) - reach
        return min(max(near, 0), num_ops - 1), reach
    return random_below(state, num_ops), reach


def is_accepted(state: NDArray[np.uint64], worse: float, temperature: float) -> bool:
    """Return True for a move that is not worse, and for a worse one the more rarely the colder it is (Metropolis)."""
    return worse <= 0 or random_below(state, 1 << 30) < math.exp(-worse / temperature) * (1 << 30)


@with_twin(calls.anneal)
def anneal(
    problem: Problem, order: IntArray, best: IntArray, state: NDArray[np.uint64], cooling: Cooling
) -> int:
    """Anneal an order; return the lowest peak met (bytes).

    Args:
        problem: the ordering problem.
        order: the order to start from; replaced by the order in which the run ends.
        best: replaced by the order with the lowest peak.
        state: one word of random state.
        cooling: length and temperatures of the run.
    """
    walk = new_walk(problem, order)
    num_ops = len(order)
    best_peak = max(walk.level.max(), walk.after.max())
    best[:] = walk.order
    # positions at or above the best peak; a lower peak can be there only when none is left
    touching = np.int64((walk.level >= best_peak).sum())
    undo = np.empty(3 * (np.int64(len(problem.touch)) + 1), np.int64)
    hot = np.empty(num_ops, np.int64)
    num_hot = 0
    cool = math.log(cooling.cold_bytes / cooling.hot_bytes) / max(1, cooling.num_moves)
    for turn in range(cooling.num_moves):
        if turn % (num_ops + 64) == 0:
            num_hot = hot_positions(walk.level, cooling.target_bytes, hot)
        position, reach = propose(state, hot, num_hot, num_ops, cooling.farthest)
        op = walk.order[position]
        lowest, highest = legal_range(problem, walk, op)
        lowest, highest = max(lowest, position - reach), min(highest, position + reach)
        if lowest >= highest:
            continue
        to = lowest + random_below(state, highest - lowest)
        to += to >= position
        undone = retouch(problem, walk, op, to, undo)
        overflow, more_touching = price(walk, op, to, cooling.target_bytes, best_peak)
        temperature = cooling.hot_bytes * math.exp(cool * turn)
        if not is_accepted(state, overflow, temperature):
            untouch(problem, walk, undo, undone)
            continue
        move(walk, op, to)
        touching += more_touching
        if touching == 0 and walk.after[0] < best_peak:
            best_peak = max(walk.level.max(), walk.after.max())
            best[:] = walk.order
            touching = np.int64((walk.level >= best_peak).sum())
    order[:] = walk.order
    return int(best_peak)
