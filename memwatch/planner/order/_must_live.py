"""Kernel: bytes that are live while an op runs, whatever the order; 64 ops at a time, one per bit of a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


@with_twin(calls.must_live)
def must_live(problem: Problem, order: IntArray, chosen: IntArray) -> IntArray:
    """Return the bytes that must be live while each chosen op runs, when nothing is computed twice.

    A buffer must be live at op v under two conditions. It must be there by then: v or an op that must run
    before v uses it, or it is live at the start. And it must be needed still: v or an op that must run after v
    uses it, or it is live at the end.

    Args:
        problem: the ordering problem.
        order: any valid order.
        chosen: at most 64 ops.

    Returns:
        Bytes for every chosen op, its workspace included.
    """
    num_ops = len(order)
    above = np.zeros(num_ops, np.uint64)  # bit i: op is chosen[i] or must run after it
    below = np.zeros(num_ops, np.uint64)  # bit i: op is chosen[i] or must run before it
    total = np.empty(len(chosen), np.int64)
    for index in range(len(chosen)):
        above[chosen[index]] = below[chosen[index]] = np.uint64(1) << np.uint64(index)
        total[index] = problem.workspace[chosen[index]] + problem.always
    for op in order:
        for entry in range(problem.pred_ptr[op], problem.pred_ptr[op + 1]):
            above[op] |= above[problem.pred[entry]]
    for op in order[::-1]:
        for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
            below[op] |= below[problem.succ[entry]]
    everything = ~np.uint64(0)
    for buffer in range(len(problem.nbytes)):
        born = everything if problem.at_start[buffer] else np.uint64(0)
        needed = everything if problem.at_end[buffer] else np.uint64(0)
        for entry in range(problem.user_ptr[buffer], problem.user_ptr[buffer + 1]):
            born |= below[problem.user[entry]]
            needed |= above[problem.user[entry]]
        both = born & needed
        index = 0
        while both and index < len(chosen):
            if both & np.uint64(1):
                total[index] += problem.nbytes[buffer]
            both >>= np.uint64(1)
            index += 1
    return total
