"""Kernels: an order and its live bytes, kept up to date while single ops move."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order._state import effect_of, live_at_start, mark_run

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


class Walk(NamedTuple):
    """An order with all that is needed to price the move of an op from the positions between alone."""

    order: IntArray  # position -> op
    place: IntArray  # op -> position
    rise: IntArray  # op -> bytes it allocates, workspace included
    net: IntArray  # op -> change of the live bytes
    level: IntArray  # position -> live bytes while the op there runs
    after: IntArray  # position + 1 -> live bytes after it; [0]: before the first op
    first: IntArray  # buffer -> op that touches it first
    last: IntArray  # buffer -> op that touches it last


def empty_walk(problem: Problem, order: IntArray) -> Walk:
    """Return the walk of an order before its bytes are counted."""
    num_ops, num_buffers = len(order), len(problem.nbytes)
    return Walk(
        order.copy(), np.empty(num_ops, np.int64), np.empty(num_ops, np.int64), np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64), np.empty(num_ops + 1, np.int64), np.empty(num_buffers, np.int64),
        np.empty(num_buffers, np.int64),
    )  # fmt: skip


@with_twin(partial(calls.new_walk, empty_walk))
def new_walk(problem: Problem, order: IntArray) -> Walk:
    """Return the walk of an order."""
    walk = empty_walk(problem, order)
    seen = np.zeros(len(problem.nbytes), np.int64)
    walk.after[0] = live_at_start(problem)
    for position in range(len(order)):
        op = order[position]
        walk.place[op] = position
        walk.rise[op], walk.net[op] = effect_of(problem, seen, op)
        walk.level[position] = walk.after[position] + walk.rise[op]
        walk.after[position + 1] = walk.after[position] + walk.net[op]
        for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
            if seen[problem.touch[entry]] == 0:
                walk.first[problem.touch[entry]] = op
            walk.last[problem.touch[entry]] = op
        mark_run(problem, seen, op)
    return walk


def legal_range(problem: Problem, walk: Walk, op: int) -> tuple[int, int]:
    """Return the first and the last position that an op may move to, while all others keep their order."""
    lowest, highest = 0, len(walk.order) - 1
    for entry in range(problem.pred_ptr[op], problem.pred_ptr[op + 1]):
        lowest = max(lowest, walk.place[problem.pred[entry]] + 1)
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        highest = min(highest, walk.place[problem.succ[entry]] - 1)
    return lowest, highest


def new_first(problem: Problem, walk: Walk, buffer: int, op: int, to: int) -> int:
    """Return the op that touches a buffer first after `op` has moved to position `to`."""
    first = walk.first[buffer]
    if first != op:
        return op if to <= walk.place[first] else first
    for entry in range(problem.user_ptr[buffer], problem.user_ptr[buffer + 1]):
        user = problem.user[entry]
        if user != op and walk.place[user] <= to and (first == op or walk.place[user] < walk.place[first]):
            first = user
    return int(first)


def new_last(problem: Problem, walk: Walk, buffer: int, op: int, to: int) -> int:
    """Return the op that touches a buffer last after `op` has moved to position `to`."""
    last = walk.last[buffer]
    if last != op:
        return op if to >= walk.place[last] else last
    for entry in range(problem.user_ptr[buffer], problem.user_ptr[buffer + 1]):
        user = problem.user[entry]
        if user != op and walk.place[user] >= to and (last == op or walk.place[user] > walk.place[last]):
            last = user
    return int(last)


def retouch(problem: Problem, walk: Walk, op: int, to: int, undo: IntArray) -> int:
    """Assign allocations and frees to the ops that make them after `op` has moved to `to`.

    Returns:
        How many entries, (buffer, former first, former last) each, were written to `undo` for `untouch`.
    """
    count = 0
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        buffer = problem.touch[entry]
        first, last = new_first(problem, walk, buffer, op, to), new_last(problem, walk, buffer, op, to)
        if first != walk.first[buffer] or last != walk.last[buffer]:
            undo[3 * count], undo[3 * count + 1] = buffer, walk.first[buffer]
            undo[3 * count + 2] = walk.last[buffer]
            count += 1
            hand_over(problem, walk, buffer, first, last)
    return count


def hand_over(problem: Problem, walk: Walk, buffer: int, first: int, last: int) -> None:
    """Make `first` allocate the buffer and `last` free it."""
    nbytes = problem.nbytes[buffer]
    if not problem.at_start[buffer]:
        walk.rise[walk.first[buffer]] -= nbytes
        walk.net[walk.first[buffer]] -= nbytes
        walk.rise[first] += nbytes
        walk.net[first] += nbytes
    if not problem.at_end[buffer]:
        walk.net[walk.last[buffer]] += nbytes
        walk.net[last] -= nbytes
    walk.first[buffer], walk.last[buffer] = first, last


def untouch(problem: Problem, walk: Walk, undo: IntArray, count: int) -> None:
    """Undo `retouch`."""
    for index in range(count):
        hand_over(problem, walk, undo[3 * index], undo[3 * index + 1], undo[3 * index + 2])


def price(walk: Walk, op: int, to: int, target: int, best: int) -> tuple[float, int]:
    """Return the changes of (overflow above the target, positions at or above the best peak) by a move."""
    place = walk.place[op]
    step = 1 if to > place else -1
    start, stop = min(place, to), max(place, to)
    overflow, touching = 0.0, 0
    for position in range(start, stop + 1):
        overflow -= max(0, walk.level[position] - target)
        touching -= walk.level[position] >= best
    live = walk.after[start]
    for position in range(start, stop + 1):
        runs = op if position == to else walk.order[position + step]
        level = live + walk.rise[runs]
        live += walk.net[runs]
        overflow += max(0, level - target)
        touching += level >= best
    return overflow, touching


def move(walk: Walk, op: int, to: int) -> None:
    """Put an op at position `to` and update everything in between."""
    place = walk.place[op]
    step = 1 if to > place else -1
    for position in range(place, to, step):
        walk.order[position] = walk.order[position + step]
    walk.order[to] = op
    for position in range(min(place, to), max(place, to) + 1):
        runs = walk.order[position]
        walk.place[runs] = position
        walk.level[position] = walk.after[position] + walk.rise[runs]
        walk.after[position + 1] = walk.after[position] + walk.net[runs]
