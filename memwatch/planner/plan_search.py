"""How a plan is found: candidates, the search, what earlier budgets of the same program found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
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
from memwatch.planner.recompute.search import Found, RecomputeSearch, Terms, warm_up
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
    bound_bytes: int | None = None

    def bound(self, graph: Graph, wish: Wish) -> int:
        """Return the bound on all plans of this wish; it is computed once."""
        if self.bound_bytes is None:
            self.bound_bytes = lower_bound(graph, wish.recompute, wish.offload)
        return self.bound_bytes

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


_LARGEST_QUICK = 5_000
_ROUNDING = 1e-12
_HISTORY: WeakKeyDictionary[Graph, dict[Wish, _History]] = WeakKeyDictionary()


def make_plan(graph: Graph, budget: int | float | str | None, wish: Wish) -> Plan:
    """Plan as `plan_graph` describes."""
    wish.check()
    warm_up()
    share = 0.9 if graph.num_ops <= _LARGEST_QUICK else 0.8  # bounds and checks take the rest
    clock = Clock.of(share * wish.time_limit_s)
    history = _HISTORY.setdefault(graph, {}).setdefault(wish, _History())
    if budget is None:
        result = _order(graph, wish, history, wish.time_limit_s)
        return _plan(graph, Found(result.order, result.peak_bytes, 0.0), result.lower_bound_bytes, None)
    program_bytes = program_peak(graph).peak_bytes
    allowed = parse_budget(budget, program_bytes - graph.baseline_bytes)
    total = allowed + graph.baseline_bytes
    if total not in history.answers:
        found = _search(graph, wish, history, total, clock)
        if found.peak_bytes > total:
            history.others.append(found)
            best = _plan(graph, found, history.bound(graph, wish), None)
            raise BudgetError(_why_not(graph, allowed, best, wish), best, best.lower_bound_bytes)
        history.answers[total] = history.choose(total, found)
    return _plan(graph, history.answers[total], history.bound(graph, wish), allowed)


def _order(graph: Graph, wish: Wish, history: _History, time_limit_s: float) -> OrderResult:
    if history.order is None:
        if callable(wish.order):
            history.order = custom_order(graph, wish.order)
        elif wish.order == "auto":
            history.order = best_order(graph, time_limit_s=time_limit_s, seed=wish.seed)
        else:
            history.order = custom_order(graph, lambda program: range(program.num_ops))
    return history.order


def _search(graph: Graph, wish: Wish, history: _History, budget_bytes: int, clock: Clock) -> Found:
    movable = moving.movable_buffers(graph) if wish.offload else None
    costs = moving.move_costs(graph, wish.bandwidth) if wish.offload else None
    keeps_order = wish.order != "auto"
    model = recompute_model(graph, movable, costs, recompute=wish.recompute, keeps_order=keeps_order)
    search = RecomputeSearch(graph, model, Terms(budget_bytes, keeps_order, wish.seed, clock))
    starts = _starts(graph, wish, history, budget_bytes, clock)
    if wish.recompute and not callable(wish.order):
        return search.run(starts, partial(seeds, graph))
    return search.run(starts)


def _starts(graph: Graph, wish: Wish, history: _History, budget_bytes: int, clock: Clock) -> list[IntArray]:
    """Orders to begin with: the program's if it may be kept, the best one."""
    program = np.arange(graph.num_ops)
    starts = [] if callable(wish.order) else [program]
    if starts and simulate(graph, schedule_of(graph, program)).peak_bytes <= budget_bytes:
        return starts
    if wish.order != "program":
        best = _order(graph, wish, history, 0.3 * clock.left_s()).order
        if not starts or not np.array_equal(best, program):
            starts.append(best)
    return starts


def _plan(graph: Graph, found: Found, bound_bytes: int, allowed: int | None) -> Plan:
    schedule = schedule_of(graph, found.tokens)
    extra = found.duration / graph.total_cost - 1 if graph.total_cost else 0.0
    baseline = graph.baseline_bytes
    return Plan(
        schedule=schedule,
        order=[graph.op_names[op] for op in schedule.ops.tolist()],
        moves=describe_moves(graph, schedule),
        peak_increase_bytes=simulate(graph, schedule).peak_bytes - baseline,
        program_peak_increase_bytes=program_peak(graph).peak_bytes - baseline,
        lower_bound_bytes=bound_bytes - baseline,
        # a sum in another order differs in the last bit; that is no cost
        extra_cost_ratio=extra if extra > _ROUNDING else 0.0,
        moved_bytes=moving.moved_bytes(graph, schedule),
        budget_bytes=allowed,
        fingerprint=fingerprint(graph),
        graph=graph,
    )


def _why_not(graph: Graph, allowed: int, best: Plan, wish: Wish) -> str:
    found, bound = format_bytes(best.peak_increase_bytes), format_bytes(best.lower_bound_bytes)
    lowest = f"no plan fits {format_bytes(allowed)}: the lowest peak increase found is {found}"
    if allowed >= best.lower_bound_bytes:
        return f"{lowest}; the bound of {bound} does not exclude it, more time may help"
    if not (wish.recompute or wish.offload):
        return f"{lowest}, and no order goes below {bound}; allow recompute or offload"
    bound_bytes = best.lower_bound_bytes + graph.baseline_bytes
    if pinned_bound(graph) >= bound_bytes:
        return f"{lowest}, and what is kept at the end takes {bound}; keep less"
    if int(working_sets(graph).max(initial=0)) < bound_bytes:
        return (
            f"{lowest}, and what must wait beside the last of the large ops makes it {bound}; allow offload"
        )
    op = graph.op_names[int(working_sets(graph).argmax())]
    return f"{lowest}, and op {op!r} alone needs {bound} for its inputs, outputs and workspace"
