"""Simulated annealing over orders, in rounds of different temperature and target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner._random import random_state

if TYPE_CHECKING:
    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem

# (target below the best peak, start temperature): shares of the best peak, in the order of the rounds. Bytes above
# the target are what a move is priced by. On random layered graphs, a target far below the peak guided best.
_ROUNDS = ((0.4, 0.3), (0.2, 0.1), (0.6, 0.3), (0.8, 0.1), (0.2, 0.3), (0.4, 0.1), (0.6, 0.1), (0.8, 0.3))
_COOLING = 1 / 25  # temperature at the end of a round, as a share of that at its start
_MOVES_PER_CALL = 400_000  # a call of the kernel cannot be interrupted; it takes well under a second
_NEAR = 100  # positions that an op moves at most, in every other round


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
    """Return an order with a lower peak, or the one to start from.

    Args:
        problem: the ordering problem.
        start: the order to start from.
        lower_bound_bytes: stop when a peak this low is reached.
        rounds: how many times to cool down.
        moves: moves per round.
        seed: seed of the random moves.
        clock: when to stop; it is read between two calls of the kernel.
    """
    from memwatch.planner.order import _anneal as kernel
    from memwatch.planner.order._state import peak_of

    state = random_state(seed)
    best: IntArray = start.copy()
    current: IntArray = start.copy()
    best_peak = int(peak_of(problem, best))
    for turn in range(rounds):
        below, heat = _ROUNDS[turn % len(_ROUNDS)]
        if turn % 3 == 0:
            current = best.copy()
        target = int(best_peak * (1 - below))
        farthest = problem.num_ops if turn % 2 else min(_NEAR, problem.num_ops)
        calls = -(-moves // _MOVES_PER_CALL)
        temperatures = max(1.0, best_peak * heat) * _COOLING ** (np.arange(calls + 1) / calls)
        for call in range(calls):
            if best_peak <= lower_bound_bytes or clock.is_over():
                return best
            met = best.copy()
            hot, cold = float(temperatures[call]), float(temperatures[call + 1])
            cooling = kernel.Cooling(-(-moves // calls), target, hot, cold, farthest)
            peak = int(kernel.anneal(problem, current, met, state, cooling))
            if peak < best_peak:
                best, best_peak = met, peak
    return best
