"""How a plan is found: candidates, the search, what earlier budgets of the same program found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from memwatch.planner import offload as moving
from memwatch.planner.bounds import lower_bound, pinned_bound, working_sets
from memwatch.planner.budget import parse_budget
from memwatch.planner.errors import BudgetError, OrderError
from memwatch.planner.order.clock import Clock
from memwatch.planner.order.custom import custom_order
from memwatch.planner.order.portfolio import OrderResult, best_order
from memwatch.planner.peak import program_peak, simulate
from memwatch.planner.plan import OrderChoice, Plan, describe_moves
from memwatch.planner.plan_file import fingerprint
from memwatch.planner.recompute.model import recompute_model, schedule_of
from memwatch.planner.recompute.search import Found, RecomputeSearch, warm_up
from memwatch.planner.recompute.seeds import seeds
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.graph import Graph


@dataclass(frozen=True, slots=True)
class Wish:
    """The arguments of `plan_graph` other than the graph and the budget."""

    order: OrderChoice
    recompute: bool
    offload: bool
    bandwidth: float | None
    time_limit_s: float
    seed: int

    def check(self) -> None:
        """Raise for a value that means nothing."""
        if not (callable(self.order) or self.order in ("auto", "program")):
            raise OrderError(
                f"order={self.order!r} is unknown; use 'auto', 'program' or a function of the graph"
            )
        if not (self.time_limit_s > 0 and math.isfinite(self.time_limit_s)):
            raise OrderError(
                f"time_limit_s={self.time_limit_s!r} leaves no time; use a positive number of seconds"
            )


@dataclass(slots=True)
class _History:
    """What earlier calls with the same wish found; it makes the peak monotone in the budget."""

    order: OrderResult | None = None
    answers: dict[int, Found] = field(default_factory=dict)
    others: list[Found] = field(default_factory=list)

    def choose(self, budget_bytes: int, found: Found) -> Found:
        """Return the cheapest known schedule between the peaks of smaller and of larger budgets."""
        floor = max(
            (one.peak_bytes for budget, one in self.answers.items() if budget < budget_bytes), default=0
        )
        ceiling = min(
            (one.peak_bytes for budget, one in self.answers.items() if budget > budget_bytes),
            default=budget_bytes,
        )
        known = [found, *self.answers.values(), *self.others]
        fitting = [one for one in known if floor <= one.peak_bytes <= min(ceiling, budget_bytes)]
        return min(fitting, key=lambda one: one.key(budget_bytes))


_HISTORY: WeakKeyDictionary[Graph, dict[Wish, _History]] = WeakKeyDictionary()


def make_plan(graph: Graph, budget: int | float | str | None, wish: Wish) -> Plan:
    """Plan as `plan_graph` describes."""
    wish.check()
    warm_up()
    clock = Clock.of(wish.time_limit_s)
    history = _HISTORY.setdefault(graph, {}).setdefault(wish, _History())
    program_bytes = program_peak(graph).peak_bytes
    if budget is None:
        result = _order(graph, wish, history, wish.time_limit_s)
        return _plan(graph, result.order, 0.0, program_bytes, result.lower_bound_bytes, None)
    allowed = parse_budget(budget, program_bytes - graph.baseline_bytes)
    total = allowed + graph.baseline_bytes
    can_repeat = wish.recompute or wish.offload
    if total not in history.answers:
        search = _searcher(graph, wish, total, clock)
        starts = _starts(graph, wish, history, total, clock)
        found = search.run(starts, seeds(graph, total) if wish.recompute and not callable(wish.order) else ())
        if found.peak_bytes > total:
            history.others.append(found)
            bound = lower_bound(graph, can_repeat)
            best = _plan(graph, found.tokens, found.duration, program_bytes, bound, None)
            raise BudgetError(_why_not(graph, allowed, best, can_repeat), best, bound - graph.baseline_bytes)
        history.answers[total] = history.choose(total, found)
    answer = history.answers[total]
    bound = lower_bound(graph, can_repeat)
    return _plan(graph, answer.tokens, answer.duration, program_bytes, bound, allowed)


def _order(graph: Graph, wish: Wish, history: _History, time_limit_s: float) -> OrderResult:
    if history.order is None:
        if callable(wish.order):
            history.order = custom_order(graph, wish.order)
        elif wish.order == "auto":
            history.order = best_order(graph, time_limit_s=time_limit_s, seed=wish.seed)
        else:
            program = np.arange(graph.num_ops)
            history.order = custom_order(graph, lambda _: program.tolist())
    return history.order


def _searcher(graph: Graph, wish: Wish, budget_bytes: int, clock: Clock) -> RecomputeSearch:
    movable = moving.movable_buffers(graph) if wish.offload else None
    costs = moving.move_costs(graph, wish.bandwidth) if wish.offload else None
    model = recompute_model(graph, movable, costs, wish.recompute)
    return RecomputeSearch(graph, model, budget_bytes, wish.order != "auto", wish.seed, clock)


def _starts(graph: Graph, wish: Wish, history: _History, budget_bytes: int, clock: Clock) -> list[IntArray]:
    """Orders to begin with: the program's if it may be kept, the best one."""
    program = np.arange(graph.num_ops)
    starts = [] if callable(wish.order) else [program]
    if starts and simulate(graph, schedule_of(graph, program)).peak_bytes <= budget_bytes:
        return starts  # the program as it is
    if wish.order != "program":
        best = _order(graph, wish, history, 0.3 * clock.left_s()).order
        if not starts or not np.array_equal(best, program):
            starts.append(best)
    return starts


def _plan(
    graph: Graph, tokens: IntArray, duration: float, program_bytes: int, bound_bytes: int, allowed: int | None
) -> Plan:
    extra = duration / graph.total_cost - 1 if graph.total_cost and duration else 0.0
    schedule = schedule_of(graph, tokens)
    peak_bytes = simulate(graph, schedule).peak_bytes
    return Plan(
        schedule=schedule,
        order=[graph.op_names[op] for op in schedule.ops.tolist()],
        moves=describe_moves(graph, schedule),
        peak_increase_bytes=peak_bytes - graph.baseline_bytes,
        program_peak_increase_bytes=program_bytes - graph.baseline_bytes,
        lower_bound_bytes=bound_bytes - graph.baseline_bytes,
        extra_cost_ratio=max(extra, 0.0) if extra > 1e-12 else 0.0,
        moved_bytes=moving.moved_bytes(graph, schedule),
        budget_bytes=allowed,
        fingerprint=fingerprint(graph),
        graph=graph,
    )


def _why_not(graph: Graph, allowed: int, best: Plan, can_repeat: bool) -> str:
    lowest = f"no plan fits {format_bytes(allowed)}: the lowest peak increase found is {format_bytes(best.peak_increase_bytes)}"
    bound = best.lower_bound_bytes
    if allowed >= bound:
        return f"{lowest}; the bound of {format_bytes(bound)} does not exclude it, more time may help"
    if not can_repeat:
        return f"{lowest}, and no order goes below {format_bytes(bound)}; allow recompute or offload"
    if pinned_bound(graph) - graph.baseline_bytes >= bound:
        return f"{lowest}, and what is kept at the end takes {format_bytes(bound)}; keep less"
    op = graph.op_names[int(working_sets(graph).argmax())]
    return f"{lowest}, and op {op!r} alone needs {format_bytes(bound)} for its inputs, outputs and workspace"
