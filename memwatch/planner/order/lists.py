"""The cheap candidates: program order, list schedules and beam searches.

Some are also made for the mirror image of the program. Its orders are the orders of the program read backwards, with
the same peaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order.problem import effect_of, live_at_start, mark_run, mark_unrun, mirror_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


_LONGEST_RUN = 24  # ops that the list schedule looks ahead along a chain; a guess
_BEAM_WIDTHS = (
    4,
    16,
)  # downsets per size; both are tried, because a wider beam is not always better; a guess


def inductor_orders(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the three methods of torch._inductor.memory: lpmf, bfs, dfs."""
    yield "bfs", breadth_first(problem)
    yield "dfs", depth_first(problem, *_by_size(problem))
    yield "lpmf", least_growth(problem, 1, _widest(problem))


def list_orders(problem: Problem, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the list schedules, cheapest first, until the time is up."""
    backwards = mirror_image(problem)
    yield "program", np.arange(problem.num_ops)
    yield from inductor_orders(problem)
    if not clock.is_over():
        yield "lookahead", least_growth(problem, _LONGEST_RUN, _widest(problem))
    if not clock.is_over():
        order = least_growth(backwards, _LONGEST_RUN, _widest(problem))
        yield "mirrored-lookahead", order[::-1].copy()


def beam_orders(problem: Problem, seed: int, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of beam searches of several widths, forwards and backwards, until the time is up."""
    bits = np.random.default_rng(seed).integers(0, 2**64, size=problem.num_ops, dtype=np.uint64)
    backwards = mirror_image(problem)
    for width in _BEAM_WIDTHS:
        if not clock.is_over():
            yield f"beam-{width}", beam_search(problem, width, bits)
        if not clock.is_over():
            yield f"mirrored-beam-{width}", beam_search(backwards, width, bits)[::-1].copy()


def _widest(problem: Problem) -> int:
    """Return how many ready ops a list schedule examines per step; this limit keeps wide programs linear."""
    return max(32, min(256, 4_000_000 // max(1, problem.num_ops)))


def _by_size(problem: Problem) -> tuple[IntArray, IntArray]:
    """Return the ops, smallest first, and the predecessors of every op, largest first."""
    owner = np.repeat(np.arange(problem.num_ops), np.diff(problem.touch_ptr))
    size = problem.workspace + np.bincount(
        owner, weights=problem.nbytes[problem.touch], minlength=problem.num_ops
    ).astype(np.int64)
    waits = np.repeat(np.arange(problem.num_ops), np.diff(problem.pred_ptr))
    below = problem.pred[np.lexsort((-size[problem.pred], waits))]
    return np.argsort(size, kind="stable"), below


def num_waiting(problem: Problem) -> IntArray:
    """Return for each op the number of ops that it waits for."""
    waiting = np.empty(len(problem.workspace), np.int64)
    for op in range(len(waiting)):
        waiting[op] = problem.pred_ptr[op + 1] - problem.pred_ptr[op]
    return waiting


@with_twin(calls.breadth_first)
def breadth_first(problem: Problem) -> IntArray:
    """Return the ops in the order of becoming ready. An op is ready when all its predecessors have run."""
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
    live = np.int64(0)
    top = np.int64(0)
    valley = np.int64(0)
    top_at_valley = np.int64(0)
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
    """Return an order. Each step runs the ready op that fits under the present peak and adds the fewest live bytes.

    If no op fits, the step runs the op that needs the fewest bytes.

    Args:
        problem: the ordering problem.
        longest: how many ops to look ahead along a chain; 1 is the `lpmf` of torch._inductor.memory.
        widest: how many ready ops to examine per step, from the last that became ready.
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
        chosen = -1
        chosen_top = np.int64(0)
        chosen_net = np.int64(0)
        chosen_fits = False
        for slot in range(max(0, num_ready - widest), num_ready):
            top, net = run_ahead(problem, seen, waiting, ready[slot], longest)
            fits = live + top <= peak
            better = fits and not chosen_fits
            if fits == chosen_fits:
                better = (
                    (net, top) < (chosen_net, chosen_top) if fits else (top, net) < (chosen_top, chosen_net)
                )
            if chosen < 0 or better:
                chosen = slot
                chosen_top = top
                chosen_net = net
                chosen_fits = fits
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


_WIDEST_SCAN = 256  # ready ops examined per state; a guess


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
    """Return a beam whose row 0 is the empty downset."""
    num_ops = len(problem.workspace)
    beam = Beam(
        np.zeros((width, len(problem.nbytes)), np.int64),
        np.zeros((width, num_ops), np.int64),
        np.zeros((width, num_ops), np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.int64),
        np.zeros(width, np.uint64),
    )
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

    A safe op fits under the peak and frees at least the bytes that it takes. If a state has one, only this op counts.
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
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.uint64),
    )
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
