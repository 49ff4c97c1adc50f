"""Find the cheapest recompute plan that keeps a given order, with the solver CP-SAT. It also proves the optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.planner.order.exact import is_cpsat_available
from memwatch.planner.recompute.reorder import augmented_graph

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph, IntArray
    from memwatch.planner.request import Clock

_PRICE_LEVELS = 1_000_000
"""The solver needs whole numbers. Other costs are scaled so that all ops together cost this, and rounded. A guess."""
_POLISH_EFFORT = 1.0
"""A limit in the solver's deterministic time, which counts its work; one unit takes about a second. A guess."""


@dataclass(frozen=True, slots=True, eq=False)
class RetentionResult:
    """Result of the solver.

    Attributes:
        tokens: the schedule; None if the solver found none.
        extra_cost: cost of its recomputes.
        bound: a lower bound of the extra cost of all schedules in this order with the same limit on copies. It is
            approximate if costs were rounded.
        proven: whether the solver proved that the schedule is the cheapest of its kind, or that there is none.
    """

    tokens: IntArray | None
    extra_cost: float
    bound: float
    proven: bool


def can_model(graph: Graph) -> bool:
    """Return True if the model covers a program: no op mutates a buffer, and no external buffer may be freed."""
    external = graph.buffer_producer < 0
    return not len(graph.writes.indices) and not bool(np.any(external & graph.buffer_freeable))


def cheaper_in_order(graph: Graph, tokens: IntArray, budget_bytes: int, clock: Clock) -> IntArray | None:
    """Return a cheaper schedule whose first computations are in the same order.

    Args:
        graph: the program.
        tokens: a schedule without moves that fits the budget.
        budget_bytes: bytes a schedule may use, external buffers included.
        clock: when to stop.

    Returns:
        The schedule. None if the solver failed, the model does not cover the program, or OR-tools is missing.
    """
    if not is_cpsat_available() or not can_model(graph) or tokens.max(initial=0) >= graph.num_ops:
        return None
    order = tokens[np.sort(np.unique(tokens, return_index=True)[1])]
    in_order = augmented_graph(graph, order)
    assert in_order is not None, "a program without mutation has an order"
    place = np.empty(graph.num_ops, dtype=np.int64)
    place[order] = np.arange(graph.num_ops)
    result = solve_retention(in_order, budget_bytes, hint=place[tokens], effort=_POLISH_EFFORT, clock=clock)
    return None if result.tokens is None else order[result.tokens]


def solve_retention(
    graph: Graph,
    budget_bytes: int,
    *,
    copies: int = 2,
    hint: IntArray | None = None,
    effort: float = 10.0,
    clock: Clock,
) -> RetentionResult:
    """Return the cheapest recompute schedule that keeps program order.

    The model is Moccasin (Bartan et al., ICML 2023). First computations stay in order. Stage j ends with the first
    computation of op j. Before that, any op with a lower number may be computed again in the stage. The time of an op
    in stage j is j (j + 1) / 2 + op. Every copy of a buffer is an interval of time. At any time, the sum of the bytes
    of the intervals is limited.

    Args:
        graph: a program that `can_model` accepts.
        budget_bytes: bytes a schedule may use, external buffers included.
        copies: how often an op may be computed, at most.
        hint: a schedule to start from.
        effort: the limit in the solver's deterministic time. Unlike the clock, it gives the same result every time.
        clock: when to stop.
    """
    from ortools.sat.python import cp_model

    model = _Model(graph, budget_bytes - graph.baseline_bytes, copies, cp_model.CpModel())
    if hint is not None:
        model.hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = max(clock.left_s(), 0.01)
    status = solver.solve(model.cp)
    bound = solver.best_objective_bound / model.scale
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return RetentionResult(None, float("inf"), bound, status == cp_model.INFEASIBLE)
    extra = solver.objective_value / model.scale
    return RetentionResult(model.tokens(solver), extra, bound, status == cp_model.OPTIMAL)


class _Model:
    """The variables and constraints of one problem. Their type is Any, because OR-tools has no types."""

    def __init__(self, graph: Graph, room_bytes: int, copies: int, cp: Any) -> None:
        self.cp = cp
        self._graph = graph
        self._copies = copies
        self._last = _event(graph.num_ops + 1, 0)
        total_cost = max(float(graph.op_cost.sum()), 1e-30)
        is_whole = bool(np.all(graph.op_cost == np.round(graph.op_cost))) and total_cost < 1e12
        self.scale = 1.0 if is_whole else _PRICE_LEVELS / total_cost
        self._present: list[list[Any]] = []
        self._start: list[list[Any]] = []
        for op in range(graph.num_ops):
            self._add_op(op)
        self._end = [
            [cp.new_int_var(0, self._last, "") for _ in self._start[producer]] if producer >= 0 else []
            for producer in graph.buffer_producer.tolist()
        ]
        self._add_memory(room_bytes)
        for op in range(graph.num_ops):
            for copy in range(len(self._start[op])):
                self._add_inputs(op, copy)
        self._add_kept()
        cp.minimize(
            sum(
                round(float(graph.op_cost[op]) * self.scale) * present
                for op in range(graph.num_ops)
                for present in self._present[op][1:]
            )
        )

    def _add_op(self, op: int) -> None:
        from ortools.sat.python import cp_model

        cp, graph = self.cp, self._graph
        present = [cp.new_constant(1)]
        start = [cp.new_constant(_event(op, op))]
        events = [_event(stage, op) for stage in range(op + 1, graph.num_ops + 1)]
        for _ in range(self._copies - 1 if graph.op_recomputable[op] else 0):
            is_there = cp.new_bool_var("")
            begin = cp.new_int_var_from_domain(cp_model.Domain.from_values(events), "")
            cp.add(begin > start[-1]).only_enforce_if(is_there)
            cp.add_implication(is_there, present[-1])
            present.append(is_there)
            start.append(begin)
        self._present.append(present)
        self._start.append(start)

    def _add_memory(self, room_bytes: int) -> None:
        cp, graph = self.cp, self._graph
        intervals, demands = [], []
        for buffer in range(graph.num_buffers):
            op = int(graph.buffer_producer[buffer])
            for copy, end in enumerate(self._end[buffer]):
                start, is_there = self._start[op][copy], self._present[op][copy]
                size = cp.new_int_var(1, self._last + 1, "")
                cp.add(end >= start).only_enforce_if(is_there)
                intervals.append(cp.new_optional_interval_var(start, size, end + 1, is_there, ""))
                demands.append(int(graph.buffer_nbytes[buffer]))
        for op in np.flatnonzero(graph.op_workspace_bytes).tolist():
            for start, is_there in zip(self._start[op], self._present[op], strict=True):
                intervals.append(cp.new_optional_fixed_size_interval_var(start, 1, is_there, ""))
                demands.append(int(graph.op_workspace_bytes[op]))
        cp.add_cumulative(intervals, demands, max(room_bytes, 0))

    def _add_inputs(self, op: int, copy: int) -> None:
        """Require that every computation finds each of its inputs in exactly one interval."""
        cp = self.cp
        start = self._start[op][copy]
        is_there = self._present[op][copy]
        for buffer in self._graph.reads.row(op).tolist():
            producer = int(self._graph.buffer_producer[buffer])
            if producer < 0:
                continue
            found = []
            for source, end in enumerate(self._end[buffer]):
                here = cp.new_bool_var("")
                cp.add_implication(here, self._present[producer][source])
                cp.add(self._start[producer][source] < start).only_enforce_if(here)
                cp.add(end >= start).only_enforce_if(here)
                found.append(here)
            cp.add(sum(found) == is_there)

    def _add_kept(self) -> None:
        cp, graph = self.cp, self._graph
        for buffer in np.flatnonzero(graph.buffer_pinned & (graph.buffer_producer >= 0)).tolist():
            kept = []
            for copy, end in enumerate(self._end[buffer]):
                here = cp.new_bool_var("")
                cp.add_implication(here, self._present[int(graph.buffer_producer[buffer])][copy])
                cp.add(end == self._last).only_enforce_if(here)
                kept.append(here)
            cp.add_bool_or(kept)

    def hint(self, tokens: IntArray) -> None:
        """Give the solver a schedule to start from. Copies above the limit are left out."""
        times: list[list[int]] = [[] for _ in range(self._graph.num_ops)]
        stage = 0
        for op in tokens.tolist():
            stage = max(stage, op)
            is_first = not times[op]
            # the latest first computation, of op `stage`, ended its stage, so a recompute belongs to the next stage
            times[op].append(_event(op if is_first else stage + 1, op))
        for op, events in enumerate(times):
            for copy in range(1, len(self._start[op])):
                self.cp.add_hint(self._present[op][copy], copy < len(events))
                if copy < len(events):
                    self.cp.add_hint(self._start[op][copy], events[copy])

    def tokens(self, solver: Any) -> IntArray:
        """Return the schedule of the solution."""
        steps = [
            (solver.value(start), op)
            for op in range(self._graph.num_ops)
            for start, present in zip(self._start[op], self._present[op], strict=True)
            if solver.value(present)
        ]
        return np.array([op for _, op in sorted(steps)], dtype=np.int64)


def _event(stage: int, op: int) -> int:
    """Return the time of an op in a stage. Stage j has j + 1 times, one for each op up to op j."""
    return stage * (stage + 1) // 2 + op
