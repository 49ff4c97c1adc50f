"""Kernels: minimax search over downsets (see `_downset`), lowest peak first.

The level is the peak below which every order has been excluded so far, so it is a proven lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order._downset import LONGEST_RUN, Downset, load, run_op, safe_run
from memwatch.planner.order._search import (
    EXPANDED,
    EXPANDED_MARK,
    HEAPED,
    LEVEL,
    NODES,
    STACKED,
    STATES,
    find,
    heap_pop,
    heap_push,
    new_node,
    remember,
)
from memwatch.planner.order._state import effect_of

if TYPE_CHECKING:
    from memwatch.planner.order._needs import Needs
    from memwatch.planner.order._search import Search
    from memwatch.planner.order.problem import Problem


RUNNING, FOUND, EXHAUSTED, FULL = 0, 1, 2, 3


def run_safe_ops(problem: Problem, search: Search, now: Downset, at: tuple[int, int]) -> tuple[int, int, int]:
    """Run all chains of ops that are safe below the level (see `safe_run`).

    Takes (live bytes, path) and returns (number of ops run, live bytes, path).
    """
    live, node = at
    run = np.empty(LONGEST_RUN + 1, np.int64)
    done = 0
    again = True
    while again:
        again = False
        for op in range(len(now.waiting)):
            if now.waiting[op] != 0:
                continue
            length = safe_run(problem, now, op, search.tally[LEVEL] - live, run)
            for index in range(length):
                _, net = effect_of(problem, now.seen, run[index])
                live += net
                run_op(problem, now, run[index])
                now.words[run[index] >> 6] |= np.uint64(1) << np.uint64(run[index] & 63)
                node = new_node(search, node, run[index])
            done += length
            again = again or length > 0
    return done, live, node


def bound_of(problem: Problem, needs: Needs, now: Downset) -> int:
    """Return a peak (bytes) that no order which goes on from this downset can go below."""
    total = needs.certain.copy()
    for buffer in range(len(now.seen)):
        users = problem.user_ptr[buffer + 1] - problem.user_ptr[buffer]
        if 0 < now.seen[buffer] < users or (now.seen[buffer] and problem.at_end[buffer]):
            total += needs.pending[buffer]
    bound = np.int64(0)
    for op in range(len(now.waiting)):
        if now.waiting[op] >= 0:
            bound = max(bound, total[op])
    return int(bound)


def expand(problem: Problem, search: Search, now: Downset, at: tuple[int, int], below: int) -> None:
    """Queue every downset that is one op larger, if its peak is under `below`."""
    live, node = at
    for op in range(len(now.waiting)):
        if now.waiting[op] != 0:
            continue
        rise, net = effect_of(problem, now.seen, op)
        key = max(search.tally[LEVEL], live + rise)
        if key >= below:
            continue
        bit = np.uint64(1) << np.uint64(op & 63)
        now.words[op >> 6] |= bit
        state = find(search, now.words)
        if state < 0:
            state = remember(search, now.words, -1 - state, live + net)
            search.lowest_peak[state] = key + 1
        now.words[op >> 6] &= ~bit
        if search.lowest_peak[state] == EXPANDED_MARK or search.lowest_peak[state] <= key:
            continue
        search.lowest_peak[state] = key
        search.node[state] = new_node(search, node, op)
        if key <= search.tally[LEVEL]:
            search.stack[search.tally[STACKED]] = state
            search.tally[STACKED] += 1
        else:
            heap_push(search, key, state)


def postpone(search: Search, bound: int, state: int, node: int) -> None:
    """Queue a state for when the level has reached its bound."""
    search.lowest_peak[state] = bound
    search.node[state] = node
    heap_push(search, bound, state)


def next_state(search: Search) -> int:
    """Take the next state from the stack or, with a higher level, from the heap; -1 when there is none."""
    while search.tally[STACKED] or search.tally[HEAPED]:
        if search.tally[STACKED]:
            search.tally[STACKED] -= 1
            state = search.stack[search.tally[STACKED]]
        else:
            search.tally[LEVEL] = max(search.tally[LEVEL], search.heap_key[0])
            state = heap_pop(search)
        if search.lowest_peak[state] != EXPANDED_MARK:
            return int(state)
    return -1


def is_full(search: Search, num_ops: int) -> bool:
    """Return True when one more expansion may exceed the memory of the search."""
    return bool(
        search.tally[STATES] + num_ops >= len(search.live)
        or search.tally[NODES] + 2 * num_ops >= len(search.parent)
        or max(search.tally[STACKED], search.tally[HEAPED]) + num_ops >= len(search.stack)
    )


@with_twin(calls.advance)
def advance(
    problem: Problem, needs: Needs, search: Search, below: int, max_expansions: int
) -> tuple[int, int]:
    """Expand downsets: lowest peak first and, of equal ones, deepest first.

    Args:
        problem: the ordering problem.
        needs: what must be live at every op.
        search: the state of the search, kept from call to call.
        below: only peaks under this are searched for (bytes).
        max_expansions: how many downsets to expand before returning RUNNING.

    Returns:
        (status, path). FOUND: the path is that of an optimal order. EXHAUSTED: no order has a peak under
        `below`. FULL: the memory of the search is used up. RUNNING: call again.
    """
    num_ops = len(problem.workspace)
    now = Downset(
        np.empty(search.words.shape[1], np.uint64),
        np.empty(len(problem.nbytes), np.int64),
        np.empty(num_ops, np.int64),
    )
    for _ in range(max_expansions):
        if is_full(search, num_ops):
            return FULL, -1
        state = next_state(search)
        if state < 0:
            return EXHAUSTED, -1
        search.lowest_peak[state] = EXPANDED_MARK
        search.tally[EXPANDED] += 1
        now.words[:] = search.words[state]
        left = load(problem, now)
        ran, live, node = run_safe_ops(problem, search, now, (search.live[state], search.node[state]))
        if ran == left:
            return FOUND, node
        if ran:
            state = find(search, now.words)
            if state < 0:
                state = remember(search, now.words, -1 - state, live)
            elif search.lowest_peak[state] == EXPANDED_MARK:
                continue
        bound = bound_of(problem, needs, now)
        if bound <= search.tally[LEVEL]:
            search.lowest_peak[state] = EXPANDED_MARK
            expand(problem, search, now, (live, node), below)
        elif bound < below:
            postpone(search, bound, state, node)
    return RUNNING, -1
