"""Improve an order by simulated annealing, in rounds with different temperatures and targets.

A move takes one op to another position, between the ops that must run before and after it. The kernel keeps the order
and its live bytes in a `Walk`. To price a move, it reads only the positions between the old and the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call, random_state
from memwatch.planner.order.problem import peak_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.graph import IntArray
    from memwatch.planner.order.problem import Problem
    from memwatch.planner.request import Clock


# For each round: how far the target is below the best peak, and the temperature at the start. Both are shares of the
# best peak. The price of a move is the bytes that it adds above the target, summed over all positions. On random
# layered graphs, targets far below the peak gave the lowest peaks.
_ROUNDS = ((0.4, 0.3), (0.2, 0.1), (0.6, 0.3), (0.8, 0.1), (0.2, 0.3), (0.4, 0.1), (0.6, 0.1), (0.8, 0.3))
_COOLING = 1 / 25  # temperature at the end of a round, as a share of the temperature at its start; a guess
# a call of the kernel cannot be interrupted, and so many moves take less than a second; a guess
_MOVES_PER_CALL = 400_000
_NEAR = 100  # positions that an op moves at most, in every second round; a guess


def anneal_order(
    problem: Problem,
    start: IntArray,
    lower_bound_bytes: int,
    *,
    rounds: int,
    moves: int,
    seed: int,
    clock: Clock,
) -> IntArray:
    """Return an order with a lower peak, or the given order.

    Args:
        problem: the ordering problem.
        start: the order to start from.
        lower_bound_bytes: stop when a peak this low is reached.
        rounds: how often the temperature falls from hot to cold.
        moves: moves per round.
        seed: seed of the random moves.
        clock: when to stop; it is read between two calls of the kernel.
    """
    state = random_state(seed)
    best: IntArray = start.copy()
    current: IntArray = start.copy()
    best_peak = int(peak_of(problem, best))
    for turn in range(rounds):
        below, heat = _ROUNDS[turn % len(_ROUNDS)]
        if (
            turn % 3 == 0
        ):  # the other rounds go on from the last order, which may be worse than the best; a guess
            current = best.copy()
        target = int(best_peak * (1 - below))
        farthest = problem.num_ops if turn % 2 else min(_NEAR, problem.num_ops)
        num_calls = -(-moves // _MOVES_PER_CALL)
        temperatures = max(1.0, best_peak * heat) * _COOLING ** (np.arange(num_calls + 1) / num_calls)
        for number in range(num_calls):
            if best_peak <= lower_bound_bytes or clock.is_over():
                return best
            met = best.copy()
            hot, cold = float(temperatures[number]), float(temperatures[number + 1])
            cooling = Cooling(-(-moves // num_calls), target, hot, cold, farthest)
            peak = int(anneal(problem, current, met, state, cooling))
            if peak < best_peak:
                best, best_peak = met, peak
    return best


class Cooling(NamedTuple):
    """Length, target and temperatures of one run of the annealing."""

    num_moves: int
    target_bytes: int  # bytes above it count as overflow
    hot_bytes: float  # temperature at the start, in bytes of overflow
    cold_bytes: float  # temperature at the end
    farthest: int  # positions an op moves at most


def anneal(
    problem: Problem, order: IntArray, best: IntArray, state: NDArray[np.uint64], cooling: Cooling
) -> int:
    """Anneal an order; return the lowest peak met (bytes).

    Args:
        problem: the ordering problem.
        order: the order to start from. The run overwrites it with its last order.
        best: the run overwrites it with the order of the lowest peak. This may be the order at the start.
        state: one word of random state, which the run advances.
        cooling: length and temperatures of the run.
    """
    return int(call("anneal_order", problem, order, best, state, cooling))


class Walk(NamedTuple):
    """An order and its live bytes."""

    order: IntArray  # position -> op
    place: IntArray  # op -> position
    rise: IntArray  # op -> bytes it allocates, workspace included
    net: IntArray  # op -> change of the live bytes
    level: IntArray  # position -> live bytes while the op there runs
    after: IntArray  # [0]: live bytes before the first op; [i + 1]: after the op at position i
    first: IntArray  # buffer -> op that touches it first
    last: IntArray  # buffer -> op that touches it last


def new_walk(problem: Problem, order: IntArray) -> Walk:
    """Return the walk of an order."""
    num_ops, num_buffers = len(order), len(problem.nbytes)
    walk = Walk(
        order.copy(),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops + 1, np.int64),
        np.empty(num_buffers, np.int64),
        np.empty(num_buffers, np.int64),
    )
    call("walk_of_order", problem, walk)
    return walk
