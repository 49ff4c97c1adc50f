"""Kernels: list schedules, which choose op after op in one pass: breadth first, depth first, least growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order._state import effect_of, live_at_start, mark_run, mark_unrun

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


def num_waiting(problem: Problem) -> IntArray:
    """Return for each op the number of ops that it waits for."""
    waiting = np.empty(len(problem.workspace), np.int64)
    for op in range(len(waiting)):
        waiting[op] = problem.pred_ptr[op + 1] - problem.pred_ptr[op]
    return waiting


@with_twin(calls.breadth_first)
def breadth_first(problem: Problem) -> IntArray:
    """Return the ops in the order in which they become ready."""
    num_ops = len(problem.workspace)
    waiting = num_waiting(problem)
    order = np.empty(num_ops, np.int64)
    count = 0
    for op in range(num_ops):
        if waiting[op] == 0:
            order[count] = op
            count += 1
    position = 0
    while position < count:
        op = order[position]
        position += 1
        for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
            after = problem.succ[entry]
            waiting[after] -= 1
            if waiting[after] == 0:
                order[count] = after
                count += 1
    return order


@with_twin(calls.depth_first)
def depth_first(problem: Problem, by_size: IntArray, below: IntArray) -> IntArray:
    """Return a post-order from the ends of the program, small ops first, as torch._inductor.memory does.

    Args:
        problem: the ordering problem.
        by_size: ops, the smallest first.
        below: `problem.pred` with every row sorted, the largest op first.
    """
    num_ops = len(problem.workspace)
    order = np.empty(num_ops, np.int64)
    state = np.zeros(num_ops, np.int8)  # 1: on the stack, 2: placed
    stack = np.empty(len(problem.pred) + num_ops + 1, np.int64)
    count = 0
    for root in by_size:
        if problem.succ_ptr[root + 1] > problem.succ_ptr[root]:
            continue
        stack[0] = root
        top = 1
        while top:
            op = stack[top - 1]
            if state[op] == 0:
                state[op] = 1
                for entry in range(problem.pred_ptr[op], problem.pred_ptr[op + 1]):
                    if state[below[entry]] == 0:  # the smallest ends on top
                        stack[top] = below[entry]
                        top += 1
                continue
            top -= 1
            if state[op] == 1:
                state[op] = 2
                order[count] = op
                count += 1
    return order


def run_ahead(problem: Problem, seen: IntArray, waiting: IntArray, op: int, longest: int) -> tuple[int, int]:
    """Return (highest rise, net change of live bytes) of the chain from an op to its lowest point.

    After each op the chain goes on with the successor of least growth that waits for nothing else.
    """
    ran = np.empty(longest, np.int64)
    live, top, valley, top_at_valley = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    length = 0
    while op >= 0 and length < longest:
        rise, net = effect_of(problem, seen, op)
        top = max(top, live + rise)
        live += net
        if length == 0 or live < valley:
            valley, top_at_valley = live, top
        mark_run(problem, seen, op)
        ran[length] = op
        length += 1
        best, following = np.int64(0), -1
        for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
            after = problem.succ[entry]
            waiting[after] -= 1
            if waiting[after] == 0:
                _, growth = effect_of(problem, seen, after)
                if following < 0 or growth < best:
                    best, following = growth, after
        op = following
    for index in range(length):
        mark_unrun(problem, seen, ran[index])
        for entry in range(problem.succ_ptr[ran[index]], problem.succ_ptr[ran[index] + 1]):
            waiting[problem.succ[entry]] += 1
    return top_at_valley, valley


@with_twin(calls.least_growth)
def least_growth(problem: Problem, longest: int, widest: int) -> IntArray:
    """Return an order that runs, op by op, the op that fits under the peak so far and grows least.

    Where none fits, it runs the op that needs least.

    Args:
        problem: the ordering problem.
        longest: how many ops to look ahead along a chain; 1 is the `lpmf` of torch._inductor.memory.
        widest: how many ready ops to examine per step: those that became ready last.
    """
    num_ops = len(problem.workspace)
    waiting = num_waiting(problem)
    seen = np.zeros(len(problem.nbytes), np.int64)
    ready = np.empty(num_ops, np.int64)
    order = np.empty(num_ops, np.int64)
    num_ready, live = 0, live_at_start(problem)
    peak = live
    for op in range(num_ops):
        if waiting[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    for position in range(num_ops):
        chosen, chosen_top, chosen_net, chosen_fits = -1, np.int64(0), np.int64(0), False
        for slot in range(max(0, num_ready - widest), num_ready):
            top, net = run_ahead(problem, seen, waiting, ready[slot], longest)
            fits = live + top <= peak
            better = fits and not chosen_fits
            if fits == chosen_fits:
                better = (
                    (net, top) < (chosen_net, chosen_top) if fits else (top, net) < (chosen_top, chosen_net)
                )
            if chosen < 0 or better:
                chosen, chosen_top, chosen_net, chosen_fits = slot, top, net, fits
        op = ready[chosen]
        for slot in range(chosen, num_ready - 1):
            ready[slot] = ready[slot + 1]
        num_ready -= 1
        rise, net = effect_of(problem, seen, op)
        peak = max(peak, live + rise)
        live += net
        mark_run(problem, seen, op)
        order[position] = op
        for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
            waiting[problem.succ[entry]] -= 1
            if waiting[problem.succ[entry]] == 0:
                ready[num_ready] = problem.succ[entry]
                num_ready += 1
    return order
