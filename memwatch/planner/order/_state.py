"""Kernels: the change of live bytes by one op, and the peak of an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


def live_at_start(problem: Problem) -> int:
    """Return the live bytes before the first op."""
    live = problem.always
    for buffer in range(len(problem.nbytes)):
        if problem.at_start[buffer]:
            live += problem.nbytes[buffer]
    return live


def effect_of(problem: Problem, seen: IntArray, op: int) -> tuple[int, int]:
    """Return (bytes that an op needs on top of what is live, change of live bytes after it).

    Args:
        problem: the ordering problem.
        seen: how many users of each buffer have run.
        op: an op all of whose predecessors have run.
    """
    rise = np.int64(0)
    fall = np.int64(0)
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        buffer = problem.touch[entry]
        if seen[buffer] == 0 and not problem.at_start[buffer]:
            rise += problem.nbytes[buffer]
        users = problem.user_ptr[buffer + 1] - problem.user_ptr[buffer]
        if seen[buffer] + 1 == users and not problem.at_end[buffer]:
            fall += problem.nbytes[buffer]
    return rise + problem.workspace[op], rise - fall


def mark_run(problem: Problem, seen: IntArray, op: int) -> None:
    """Count an op as run in `seen`."""
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        seen[problem.touch[entry]] += 1


def mark_unrun(problem: Problem, seen: IntArray, op: int) -> None:
    """Undo `mark_run`."""
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        seen[problem.touch[entry]] -= 1


def levels_of(problem: Problem, order: IntArray) -> IntArray:
    """Return the live bytes while each op of the order runs."""
    seen = np.zeros(len(problem.nbytes), np.int64)
    levels = np.empty(len(order), np.int64)
    live = live_at_start(problem)
    for position in range(len(order)):
        rise, net = effect_of(problem, seen, order[position])
        levels[position] = live + rise
        live += net
        mark_run(problem, seen, order[position])
    return levels


@with_twin(calls.peak_of)
def peak_of(problem: Problem, order: IntArray) -> int:
    """Return the peak of an order (bytes)."""
    peak = live_at_start(problem)
    for level in levels_of(problem, order):
        peak = max(peak, level)
    return peak
