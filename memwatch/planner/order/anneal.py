"""Simulated annealing over orders, in rounds of different temperature and target.

A move takes one op to another position within its legal range. A `Walk` holds the order and its live bytes, and prices
a move from the positions between the old and the new one alone.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._random import random_below, random_state
from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order.problem import effect_of, live_at_start, mark_run, peak_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


# (distance of the target below the best peak, start temperature), as shares of the best peak, for each round. The price
# of a move is the change of the bytes above the target. On random layered graphs, targets far below the peak gave the
# lowest peaks.
_ROUNDS = ((0.4, 0.3), (0.2, 0.1), (0.6, 0.3), (0.8, 0.1), (0.2, 0.3), (0.4, 0.1), (0.6, 0.1), (0.8, 0.3))
_COOLING = 1 / 25  # temperature at the end of a round, as a share of the temperature at its start; a guess
_MOVES_PER_CALL = (
    400_000  # a call of the kernel cannot be interrupted; so many moves take well under a second; a guess
)
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
    """Return an order with a lower peak, or the one to start from.

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
            cooling = Cooling(-(-moves // calls), target, hot, cold, farthest)
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
    """Return True for a move that is not worse. Accept a worse move at random, rarely when it is cold (Metropolis)."""
    return worse <= 0 or random_below(state, 1 << 30) < math.exp(-worse / temperature) * (1 << 30)


@with_twin(calls.anneal)
def anneal(
    problem: Problem, order: IntArray, best: IntArray, state: NDArray[np.uint64], cooling: Cooling
) -> int:
    """Anneal an order; return the lowest peak met (bytes).

    Args:
        problem: the ordering problem.
        order: the order to start from. It is replaced by the last order of the run.
        best: replaced by the order with the lowest peak.
        state: one word of random state.
        cooling: length and temperatures of the run.
    """
    walk = new_walk(problem, order)
    num_ops = len(order)
    best_peak = max(walk.level.max(), walk.after.max())
    best[:] = walk.order
    # positions at or above the best peak; the present peak is lower only if there are none
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
        lowest = max(lowest, position - reach)
        highest = min(highest, position + reach)
        if lowest >= highest:
            continue
        to = lowest + random_below(state, highest - lowest)
        to += to >= position
        undone = reassign_users(problem, walk, op, to, undo)
        overflow, more_touching = price_of_move(walk, op, to, cooling.target_bytes, best_peak)
        temperature = cooling.hot_bytes * math.exp(cool * turn)
        if not is_accepted(state, overflow, temperature):
            restore_users(problem, walk, undo, undone)
            continue
        move_op(walk, op, to)
        touching += more_touching
        if touching == 0 and walk.after[0] < best_peak:
            best_peak = max(walk.level.max(), walk.after.max())
            best[:] = walk.order
            touching = np.int64((walk.level >= best_peak).sum())
    order[:] = walk.order
    return int(best_peak)


class Walk(NamedTuple):
    """An order and its live bytes. The price of moving an op follows from the positions between old and new place."""

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
        order.copy(),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int64),
        np.empty(num_ops + 1, np.int64),
        np.empty(num_buffers, np.int64),
        np.empty(num_buffers, np.int64),
    )


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


def first_user_after_move(problem: Problem, walk: Walk, buffer: int, op: int, to: int) -> int:
    """Return the op that touches a buffer first after `op` has moved to position `to`."""
    first = walk.first[buffer]
    if first != op:
        return op if to <= walk.place[first] else first
    for entry in range(problem.user_ptr[buffer], problem.user_ptr[buffer + 1]):
        user = problem.user[entry]
        if user != op and walk.place[user] <= to and (first == op or walk.place[user] < walk.place[first]):
            first = user
    return int(first)


def last_user_after_move(problem: Problem, walk: Walk, buffer: int, op: int, to: int) -> int:
    """Return the op that touches a buffer last after `op` has moved to position `to`."""
    last = walk.last[buffer]
    if last != op:
        return op if to >= walk.place[last] else last
    for entry in range(problem.user_ptr[buffer], problem.user_ptr[buffer + 1]):
        user = problem.user[entry]
        if user != op and walk.place[user] >= to and (last == op or walk.place[user] > walk.place[last]):
            last = user
    return int(last)


def reassign_users(problem: Problem, walk: Walk, op: int, to: int, undo: IntArray) -> int:
    """Assign allocations and frees to the ops that make them after `op` has moved to `to`.

    Returns:
        How many entries, (buffer, former first, former last) each, were written to `undo` for `restore_users`.
    """
    count = 0
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        buffer = problem.touch[entry]
        first = first_user_after_move(problem, walk, buffer, op, to)
        last = last_user_after_move(problem, walk, buffer, op, to)
        if first != walk.first[buffer] or last != walk.last[buffer]:
            undo[3 * count], undo[3 * count + 1] = buffer, walk.first[buffer]
            undo[3 * count + 2] = walk.last[buffer]
            count += 1
            set_first_and_last(problem, walk, buffer, first, last)
    return count


def set_first_and_last(problem: Problem, walk: Walk, buffer: int, first: int, last: int) -> None:
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


def restore_users(problem: Problem, walk: Walk, undo: IntArray, count: int) -> None:
    """Undo `reassign_users`."""
    for index in range(count):
        set_first_and_last(problem, walk, undo[3 * index], undo[3 * index + 1], undo[3 * index + 2])


def price_of_move(walk: Walk, op: int, to: int, target: int, best: int) -> tuple[float, int]:
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


def move_op(walk: Walk, op: int, to: int) -> None:
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
