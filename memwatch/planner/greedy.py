"""Plan in Python, on machines on which the compiled kernels cannot be loaded.

This planner only promises a valid plan with a peak that is never above the peak of program order. The searches in
`order` and `recompute` find lower peaks and cheaper plans. `native.library.prepare` decides whether they or this module
make the plan.

The planner tries a list order and checkpointed schedules. If none of them fits the budget, it cuts gaps. A gap is the
time between two uses of a buffer, in which the buffer is idle. The cut computes the buffer again before its next use,
or moves it out and back.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.planner.graph import OrderError
from memwatch.planner.order.bounds import lower_bound
from memwatch.planner.order.portfolio import OrderResult
from memwatch.planner.order.problem import live_at_start, order_problem
from memwatch.planner.peak import Allocations, Schedule, allocations, simulate
from memwatch.planner.recompute.model import schedule_of
from memwatch.planner.recompute.search import PricedSchedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memwatch.planner.graph import Graph, IntArray
    from memwatch.planner.order.problem import Problem
    from memwatch.planner.recompute.model import Model
    from memwatch.planner.request import Clock

NOTE: Final = (
    "memwatch's compiled planner could not be used, so the simple planner in Python made this plan: "
    "run `memwatch build` and plan again for a lower peak or a lower cost"
)
_TINY: Final = 1e-9  # in the unit of the costs; added to a price, so that a free cut does not divide by zero
# The constants below are guesses.
_MOST_READY = 32  # ready ops that the list order examines per step, the latest ones
_MOST_OPS_PER_CUT = 12  # ops that one cut computes again, at most
_CUTS_TRIED = 12  # cuts tried at one step of the schedule: the ones with the best estimates
_MOST_MISSES = 6  # highest steps that are tried; if no cut helps at any of them, the planner gives up


def greedy_order(graph: Graph, clock: Clock) -> OrderResult:
    """Return the lower of program order and a list order. The list order is left out if the time is up."""
    order = np.arange(graph.num_ops)
    peak_bytes = simulate(graph, Schedule.from_order(order)).peak_bytes
    bound_bytes = min(lower_bound(graph, recompute=False), peak_bytes)
    method = "program"
    if peak_bytes > bound_bytes:
        other = np.array(list(_least_growth(order_problem(graph), clock)), dtype=np.int64)
        if len(other) == graph.num_ops:
            other_bytes = simulate(graph, Schedule.from_order(other)).peak_bytes
            if other_bytes < peak_bytes:
                order, peak_bytes, method = other, other_bytes, "list order in Python"
    return OrderResult(order, peak_bytes, bound_bytes, peak_bytes == bound_bytes, method)


def _least_growth(problem: Problem, clock: Clock) -> Iterator[int]:
    """Yield the ops in an order with a low peak; stop early if the time is up.

    The next op is the ready op that fits under the peak so far and adds the fewest live bytes. If no op fits, it is the
    op that needs the fewest bytes.
    """
    touch, touch_ptr = problem.touch.tolist(), problem.touch_ptr.tolist()
    succ, succ_ptr = problem.succ.tolist(), problem.succ_ptr.tolist()
    nbytes, workspace = problem.nbytes.tolist(), problem.workspace.tolist()
    is_there = problem.at_start.tolist()
    uses_left = (np.diff(problem.user_ptr) + problem.at_end).tolist()
    waits_for = np.diff(problem.pred_ptr).tolist()
    ready = [op for op, count in enumerate(waits_for) if not count]
    live = peak = live_at_start(problem)
    while ready and not clock.is_over():
        ranked = []
        for op in ready[-_MOST_READY:]:
            buffers = touch[touch_ptr[op] : touch_ptr[op + 1]]
            made = sum(nbytes[buffer] for buffer in buffers if not is_there[buffer])
            net = made - sum(nbytes[buffer] for buffer in buffers if uses_left[buffer] == 1)
            rise = made + workspace[op]
            fits = live + rise <= peak
            ranked.append((not fits, *((net, rise) if fits else (rise, net)), op))
        is_higher, first, second, op = min(ranked)
        rise, net = (first, second) if is_higher else (second, first)
        peak, live = max(peak, live + rise), live + net
        ready.remove(op)
        for buffer in touch[touch_ptr[op] : touch_ptr[op + 1]]:
            is_there[buffer] = 1
            uses_left[buffer] -= 1
        for after in succ[succ_ptr[op] : succ_ptr[op + 1]]:
            waits_for[after] -= 1
            if not waits_for[after]:
                ready.append(after)
        yield op


def priced_order(graph: Graph, order: IntArray) -> PricedSchedule:
    """Return an order, which runs each op once, with its price."""
    peak_bytes = simulate(graph, Schedule.from_order(order)).peak_bytes
    return PricedSchedule(order, peak_bytes, _cost(graph, order))


def _cost(graph: Graph, ops: IntArray) -> float:
    # added up op by op, as the kernels do, so that equal schedules have equal prices
    return float(np.cumsum(graph.op_cost[ops])[-1]) if len(ops) else 0.0


class _Gap(NamedTuple):
    """A buffer that is idle after step `since` and before step `until`."""

    buffer: int
    since: int
    until: int


class GreedySearch:
    """The planner in Python for one budget.

    Args:
        graph: the program.
        model: its recompute problem: which ops may run again, which buffers may move, and the price of a move.
        budget_bytes: bytes that a schedule may use, external buffers included.
        clock: when to stop.
    """

    def __init__(self, graph: Graph, model: Model, budget_bytes: int, clock: Clock) -> None:
        self._graph = graph
        self._model = model
        self._budget_bytes = budget_bytes
        self._clock = clock

    def run(self, starts: Sequence[IntArray], seeds: Iterable[IntArray]) -> PricedSchedule:
        """Return the cheapest schedule found that fits, or the lowest if none fits.

        Args:
            starts: orders of the program, each op once.
            seeds: schedules to try that compute some ops again. Invalid schedules are left out.
        """
        known = [self._priced(tokens) for tokens in starts]
        for tokens in seeds:
            if self._clock.is_over():
                break
            try:
                known.append(self._priced(tokens))
            except OrderError:
                continue
        best = self._best(known)
        if best.peak_bytes > self._budget_bytes:
            known += [self._with_cuts(each) for each in dict.fromkeys([known[0], best])]
        return self._best(known)

    def _best(self, known: list[PricedSchedule]) -> PricedSchedule:
        return min(known, key=lambda one: one.key(self._budget_bytes))

    def _priced(self, tokens: IntArray) -> PricedSchedule:
        """Return a schedule with its price. Here a copy never overlaps with computing, so a move costs its whole time.

        Raises:
            OrderError: the schedule does not compute what the program computes.
        """
        schedule = schedule_of(self._graph, tokens)
        moves = self._model.move_cost[schedule.index[tokens >= self._graph.num_ops]].sum()
        peak_bytes = simulate(self._graph, schedule).peak_bytes
        return PricedSchedule(tokens, peak_bytes, _cost(self._graph, schedule.ops) + float(moves))

    def _with_cuts(self, found: PricedSchedule) -> PricedSchedule:
        """Cut again and again at one of the highest steps above the budget, until the schedule fits or no cut helps."""
        tokens: IntArray | None = found.tokens
        while tokens is not None and not self._clock.is_over():
            found = self._priced(tokens)
            allocated = allocations(self._graph, schedule_of(self._graph, tokens))
            live = self._live(tokens)
            above = np.flatnonzero(live > self._budget_bytes)
            highest = above[np.argsort(-live[above], kind="stable")][:_MOST_MISSES]
            cuts = (self._best_cut(tokens, allocated, live, step) for step in highest.tolist())
            tokens = next((cut for cut in cuts if cut is not None), None)
        return found

    def _best_cut(
        self, tokens: IntArray, allocated: Allocations, live: IntArray, step: int
    ) -> IntArray | None:
        """Return the tokens with the cut at a step that removes the most bytes above the budget for its price.

        Return None if every cut leaves at least as many bytes above the budget.
        """
        graph = self._graph
        above = np.cumsum(np.concatenate(([0], np.maximum(live - self._budget_bytes, 0))))
        cuts: list[tuple[float, float, list[tuple[int, int]]]] = []
        for gap in self._gaps_at(tokens, allocated, step):
            whole = int(graph.buffer_nbytes[gap.buffer]) * (gap.until - gap.since - 1)
            removed = min(whole, int(above[gap.until] - above[gap.since + 1]))
            for price, inserted in self._cuts_of(allocated, gap):
                cuts.append((-removed / (price + _TINY), price, inserted))
        before = self._overflow(tokens, live)
        best, best_score = None, 0.0
        for _, price, inserted in sorted(cuts, key=lambda cut: cut[0])[:_CUTS_TRIED]:
            places, new = zip(*inserted, strict=True)
            trial = np.insert(tokens, places, new)
            try:
                after = self._overflow(trial, self._live(trial))
            except OrderError:  # an input of a repeated op has been overwritten meanwhile
                continue
            score = (before - after) / (price + _TINY)
            if score > best_score:
                best, best_score = trial, score
        return best

    def _live(self, tokens: IntArray) -> IntArray:
        return simulate(self._graph, schedule_of(self._graph, tokens)).live_bytes

    def _overflow(self, tokens: IntArray, live: IntArray) -> int:
        """Return the bytes above the budget, summed over the steps.

        A cut inserts steps: repeated ops and moves. All steps nearby may be far above the budget. If the inserted steps
        counted in full, every cut there would look bad. So only a part of an inserted step counts: its bytes above the
        next step that runs an op for the first time.
        """
        graph = self._graph
        above = np.maximum(live - self._budget_bytes, 0)
        is_first = np.zeros(len(tokens), dtype=bool)
        is_first[np.unique(tokens, return_index=True)[1]] = True
        is_first &= tokens < graph.num_ops
        following = np.minimum.accumulate(np.where(is_first, np.arange(len(tokens)), len(tokens))[::-1])[::-1]
        above_at_next = np.append(above, 0)[following]
        return int(above[is_first].sum() + np.maximum(above - above_at_next, 0)[~is_first].sum())

    def _gaps_at(self, tokens: IntArray, allocated: Allocations, step: int) -> Iterator[_Gap]:
        """Yield the buffers that are idle at a step and used later, or kept to the end."""
        graph = self._graph
        across = (allocated.first_step < step) & (allocated.last_step > step)
        across &= graph.buffer_nbytes[allocated.buffer] > 0
        uses: dict[int, list[int]] = {buffer: [] for buffer in allocated.buffer[across].tolist()}
        for position, token in enumerate(tokens.tolist()):
            used = (
                graph.touches.row(token).tolist()
                if token < graph.num_ops
                else [(token - graph.num_ops) % graph.num_buffers]
            )
            for buffer in used:
                if buffer in uses:
                    uses[buffer].append(position)
        for buffer, positions in uses.items():
            at = bisect_left(positions, step)
            if at < len(positions) and positions[at] == step:
                continue
            since = positions[at - 1] if at else -1
            yield _Gap(buffer, since, positions[at] if at < len(positions) else len(tokens))

    def _cuts_of(self, allocated: Allocations, gap: _Gap) -> Iterator[tuple[float, list[tuple[int, int]]]]:
        """Yield the ways to cut a gap: the price, and the tokens to insert with their places.

        There are three ways:
        - move the buffer out and back;
        - run its op again, and keep the inputs of the op alive until then;
        - run its op again, together with the ops that make the inputs that were freed.
        """
        graph, model = self._graph, self._model
        if model.movable[gap.buffer]:
            out = graph.num_ops + gap.buffer
            back = out + graph.num_buffers
            yield 2 * float(model.move_cost[gap.buffer]), [(gap.since + 1, out), (gap.until, back)]
        is_there = {
            buffer
            for buffer, first, last in zip(
                allocated.buffer.tolist(),
                allocated.first_step.tolist(),
                allocated.last_step.tolist(),
                strict=True,
            )
            if first < gap.until <= last
        } - {gap.buffer}
        again: set[int] = set()
        wanted = [gap.buffer]
        while wanted:
            buffer = wanted.pop()
            op = int(graph.buffer_producer[buffer])
            # to make a buffer again that is written in place, all its writers would have to run again
            if op < 0 or not model.again[op] or graph.final_version[buffer] or len(graph.writes.row(op)):
                if buffer == gap.buffer:
                    return
                continue  # this input has to stay alive until then
            if op in again:
                continue
            if len(again) == _MOST_OPS_PER_CUT:
                return
            again.add(op)
            if buffer == gap.buffer:
                yield float(graph.op_cost[op]), [(gap.until, op)]
            wanted += [read for read in graph.reads.row(op).tolist() if read not in is_there]
        if len(again) > 1:
            yield float(graph.op_cost[list(again)].sum()), [(gap.until, op) for op in sorted(again)]
