"""Kernels: one downset, and the runs of ops that are safe from there.

A downset is a set of ops that may have run: with an op, it holds all ops that must run before that one. Which buffers
are live depends on the downset alone, not on the order in which its ops ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.order._state import effect_of, mark_run, mark_unrun

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem

LONGEST_RUN = 16  # ops
_MOST_TRIES = 48  # ops tried per safe run; a limit on the work where chains fork


class Downset(NamedTuple):
    """One downset, in the form that the search changes op by op."""

    words: NDArray[np.uint64]  # bits of the ops that have run
    seen: IntArray  # buffer -> how many of its users have run
    waiting: IntArray  # op -> how many ops it waits for, -1 once it has run


def run_op(problem: Problem, now: Downset, op: int) -> None:
    """Add an op to the downset; the caller updates `words`."""
    mark_run(problem, now.seen, op)
    now.waiting[op] = -1
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        now.waiting[problem.succ[entry]] -= 1


def unrun_op(problem: Problem, now: Downset, op: int) -> None:
    """Undo `run_op`."""
    mark_unrun(problem, now.seen, op)
    now.waiting[op] = 0
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        now.waiting[problem.succ[entry]] += 1


def safe_run(problem: Problem, now: Downset, first: int, room: int, run: IntArray) -> int:
    """Write a safe chain of ops from `first` to `run`: it fits in `room` and leaves no more live bytes than before.

    Running such a chain at once never hurts. Live bytes are submodular in the set of ops that have run, and every
    shorter prefix of the chain leaves more behind, so moving the chain forward lowers every later level.

    Returns:
        Length of the chain, 0 when there is none. The downset is unchanged.
    """
    live = np.zeros(LONGEST_RUN + 1, np.int64)
    cursor = np.zeros(LONGEST_RUN + 1, np.int64)
    depth, tries, found, candidate = 0, 0, 0, first
    while True:
        if candidate >= 0 and tries < _MOST_TRIES:
            tries += 1
            rise, net = effect_of(problem, now.seen, candidate)
            if live[depth] + rise <= room:
                run[depth] = candidate
                live[depth + 1] = live[depth] + net
                run_op(problem, now, candidate)
                depth += 1
                cursor[depth] = problem.succ_ptr[candidate]
                if live[depth] <= 0:
                    found = depth
                    break
        if depth == 0:
            break
        candidate = -1
        if depth < LONGEST_RUN and tries < _MOST_TRIES:
            while candidate < 0 and cursor[depth] < problem.succ_ptr[run[depth - 1] + 1]:
                after = problem.succ[cursor[depth]]
                cursor[depth] += 1
                if now.waiting[after] == 0:
                    candidate = after
        if candidate < 0:
            depth -= 1
            unrun_op(problem, now, run[depth])
            if depth == 0:
                break
    while depth:
        depth -= 1
        unrun_op(problem, now, run[depth])
    return found


def load(problem: Problem, now: Downset) -> int:
    """Compute the rest of a downset from its words; return how many ops have not run."""
    now.seen[:] = 0
    left = 0
    for op in range(len(now.waiting)):
        now.waiting[op] = problem.pred_ptr[op + 1] - problem.pred_ptr[op]
    for op in range(len(now.waiting)):
        if now.words[op >> 6] >> np.uint64(op & 63) & np.uint64(1):
            run_op(problem, now, op)
        else:
            left += 1
    return left
