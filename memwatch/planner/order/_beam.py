"""Kernel: beam search over downsets (see `_downset`). All states of a step have run equally many ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order._lists import num_waiting
from memwatch.planner.order._state import effect_of, live_at_start, mark_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem

_WIDEST_SCAN = 256  # ready ops examined per state


class Beam(NamedTuple):
    """The states of one step, a row each."""

    seen: IntArray  # state, buffer -> how many of its users have run
    waiting: IntArray  # state, op -> how many ops it waits for
    ready: IntArray  # state -> its ready ops
    num_ready: IntArray
    live: IntArray
    peak: IntArray
    key: NDArray[np.uint64]  # hash of the downset


class Candidates(NamedTuple):
    """Ways to go on: a state, and the op that it runs next."""

    state: IntArray
    slot: IntArray  # place of the op among the ready ones
    peak: IntArray
    live: IntArray
    key: NDArray[np.uint64]


def new_beam(problem: Problem, width: int) -> Beam:
    """Return a beam in which row 0 is the empty downset."""
    num_ops = len(problem.workspace)
    beam = Beam(
        np.zeros((width, len(problem.nbytes)), np.int64), np.zeros((width, num_ops), np.int64),
        np.zeros((width, num_ops), np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64),
        np.zeros(width, np.int64), np.zeros(width, np.uint64),
    )  # fmt: skip
    beam.waiting[0] = num_waiting(problem)
    beam.live[0] = beam.peak[0] = live_at_start(problem)
    for op in range(num_ops):
        if beam.waiting[0, op] == 0:
            beam.ready[0, beam.num_ready[0]] = op
            beam.num_ready[0] += 1
    return beam


def list_candidates(
    problem: Problem, beam: Beam, size: int, bits: NDArray[np.uint64], out: Candidates
) -> int:
    """Write the ways to go on to `out`; return how many there are.

    A state with a safe op, one that fits under the peak and frees what it takes, has only this way.
    """
    count = 0
    for state in range(size):
        start = count
        for slot in range(max(0, beam.num_ready[state] - _WIDEST_SCAN), beam.num_ready[state]):
            op = beam.ready[state, slot]
            rise, net = effect_of(problem, beam.seen[state], op)
            is_safe = net <= 0 and beam.live[state] + rise <= beam.peak[state]
            if is_safe:
                count = start
            out.state[count], out.slot[count] = state, slot
            out.peak[count] = max(beam.peak[state], beam.live[state] + rise)
            out.live[count] = beam.live[state] + net
            out.key[count] = beam.key[state] ^ bits[op]
            count += 1
            if is_safe:
                break
    return count


def take_best(found: Candidates, count: int, chosen: IntArray) -> int:
    """Write the candidates with the lowest (peak, live) to `chosen`, one per downset; return how many."""
    size = 0
    while size < len(chosen):
        best = -1
        for index in range(count):
            if found.state[index] < 0:
                continue
            if best < 0 or (found.peak[index], found.live[index]) < (found.peak[best], found.live[best]):
                best = index
        if best < 0:
            break
        chosen[size] = best
        size += 1
        kept = found.state[best]
        for index in range(count):
            if found.key[index] == found.key[best]:
                found.state[index] = -1
        found.state[best] = -2 - kept  # marked as chosen; the state is restored below
    for index in range(size):
        found.state[chosen[index]] = -2 - found.state[chosen[index]]
    return size


def extend_state(problem: Problem, old: Beam, taken: tuple[int, int], new: Beam, target: int) -> int:
    """Copy a state to row `target` of the next step, run one of its ready ops there, and return that op."""
    source, slot = taken
    op = old.ready[source, slot]
    new.seen[target] = old.seen[source]
    new.waiting[target] = old.waiting[source]
    rise, net = effect_of(problem, old.seen[source], op)
    new.peak[target] = max(old.peak[source], old.live[source] + rise)
    new.live[target] = old.live[source] + net
    mark_run(problem, new.seen[target], op)
    count = 0
    for index in range(old.num_ready[source]):
        if index != slot:
            new.ready[target, count] = old.ready[source, index]
            count += 1
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        after = problem.succ[entry]
        new.waiting[target, after] -= 1
        if new.waiting[target, after] == 0:
            new.ready[target, count] = after
            count += 1
    new.num_ready[target] = count
    return int(op)


@with_twin(calls.beam_search)
def beam_search(problem: Problem, width: int, bits: NDArray[np.uint64]) -> IntArray:
    """Return the best order found with the `width` best downsets of every size; `bits` holds a random word per op."""
    num_ops = len(problem.workspace)
    old, new = new_beam(problem, width), new_beam(problem, width)
    most = width * min(num_ops, _WIDEST_SCAN)
    found = Candidates(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.empty(most, np.int64), np.empty(most, np.uint64),
    )  # fmt: skip
    came_from = np.empty((num_ops, width), np.int64)
    ran = np.empty((num_ops, width), np.int64)
    chosen = np.empty(width, np.int64)
    size = 1
    for step in range(num_ops):
        count = list_candidates(problem, old, size, bits, found)
        size = take_best(found, count, chosen)
        for target in range(size):
            source = found.state[chosen[target]]
            came_from[step, target] = source
            ran[step, target] = extend_state(problem, old, (source, found.slot[chosen[target]]), new, target)
            new.key[target] = found.key[chosen[target]]
        old, new = new, old
    order = np.empty(num_ops, np.int64)
    state = 0  # the best one was taken first
    for step in range(num_ops - 1, -1, -1):
        order[step] = ran[step, state]
        state = came_from[step, state]
    return order
