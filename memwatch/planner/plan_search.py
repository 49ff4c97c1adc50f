"""Find the cheapest schedule of a program that fits a budget, with `plan_graph`.

The searches are in `order` and `recompute`. This module chooses the schedules that they start from, remembers the
schedules that they found for earlier budgets of the same program, and explains why no schedule fits a budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from memwatch.planner.graph import fingerprint
from memwatch.planner.greedy import NOTE, GreedySearch, greedy_order, priced_order
from memwatch.planner.native.library import is_available, prepare
from memwatch.planner.order.bounds import lower_bound, pinned_bound, working_sets
from memwatch.planner.order.portfolio import OrderResult, custom_order, find_order
from memwatch.planner.peak import at_peak, program_peak, simulate
from memwatch.planner.plan import BudgetError, Plan, describe_moves
from memwatch.planner.recompute.model import (
    movable_buffers,
    move_costs,
    moved_bytes,
    recompute_model,
    schedule_of,
)
from memwatch.planner.recompute.search import PricedSchedule, RecomputeSearch, Terms
from memwatch.planner.recompute.seeds import even_seeds, seeds
from memwatch.planner.request import Clock, OrderChoice, PlanRequest, op_text, parse_budget
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.graph import Graph, IntArray, Name

# ops; the bounds and checks of larger programs get 20 % of the time instead of 10 %; a guess
_LARGEST_QUICK = 5_000
_ROUNDING = 1e-12  # a smaller extra cost, as a share of the program's, is an error of floating point; a guess


@dataclass(slots=True)
class _History:
    """The schedules that earlier calls with the same request found.

    With them, a smaller budget never gets a higher peak than a larger one. Requests that differ only in the time limit
    share one history, so that a later request never gets a worse plan.

    Attributes:
        order: the best order without recomputes; None before the first search.
        answers: budget (bytes) -> the schedule that was returned.
        others: the schedules that the searches found.
        bound_bytes: the lower bound of all plans, external buffers included; None before it was computed.
        searched_s: budget -> the longest time limit of a search for it.
        in_python: the budgets for which the Python planner ran, because the compiled kernels were not available.
    """

    order: OrderResult | None = None
    answers: dict[int, PricedSchedule] = field(default_factory=dict)
    others: list[PricedSchedule] = field(default_factory=list)
    bound_bytes: int | None = None
    searched_s: dict[int | None, float] = field(default_factory=dict)
    in_python: set[int | None] = field(default_factory=set)

    def wants_search(self, budget_bytes: int | None, time_limit_s: float) -> bool:
        """Return True if no earlier search for this budget had as much time, or all ran without the kernels.

        Record that a search with this time limit runs now.
        """
        is_new = self.searched_s.get(budget_bytes, 0.0) < time_limit_s or (
            budget_bytes in self.in_python and is_available()
        )
        self.searched_s[budget_bytes] = max(self.searched_s.get(budget_bytes, 0.0), time_limit_s)
        return is_new

    def has_kernels(self, budget_bytes: int | None, clock: Clock) -> bool:
        """Return True if the search for a budget can use the kernels. Remember a budget whose search cannot."""
        if prepare(clock):
            self.in_python.discard(budget_bytes)
            return True
        self.in_python.add(budget_bytes)
        return False

    def notes(self, budget_bytes: int | None) -> list[str]:
        """Return the notes of a plan for a budget."""
        return [NOTE] if budget_bytes in self.in_python else []

    def bound(self, graph: Graph, request: PlanRequest) -> int:
        """Return the lower bound of the peak of all plans of this request (bytes). It is computed once."""
        if self.bound_bytes is None:
            self.bound_bytes = lower_bound(graph, request.recompute, request.offload)
        return self.bound_bytes

    def lowest_above(self, budget_bytes: int) -> list[IntArray]:
        """Return the lowest result of a search above a budget, in a list, or an empty list. The next search uses it."""
        above = [one for one in self.others if one.peak_bytes > budget_bytes]
        return [min(above, key=lambda one: one.peak_bytes).tokens] if above else []

    def choose(self, budget_bytes: int) -> PricedSchedule:
        """Return the cheapest known schedule that keeps the peak monotone in the budget, or the lowest if none fits.

        Its peak lies between the peaks that were returned for smaller budgets and for larger budgets. Without this
        rule, a lucky search for a small budget could be cheaper than the search for a larger budget.
        """
        floor = max(
            (one.peak_bytes for budget, one in self.answers.items() if budget < budget_bytes), default=0
        )
        ceiling = min(
            (one.peak_bytes for budget, one in self.answers.items() if budget > budget_bytes),
            default=budget_bytes,
        )
        known = [*self.answers.values(), *self.others]
        fitting = [one for one in known if floor <= one.peak_bytes <= min(ceiling, budget_bytes)]
        return min(fitting or known, key=lambda one: one.key(budget_bytes))


# the keys are weak references, so the histories of a program are dropped together with it
_HISTORY: WeakKeyDictionary[Graph, dict[PlanRequest, _History]] = WeakKeyDictionary()


def plan_graph(
    graph: Graph,
    *,
    budget: int | float | str | None = None,
    order: OrderChoice = "auto",
    recompute: bool = True,
    offload: bool = False,
    bandwidth: float | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    known: Sequence[Sequence[Name]] = (),
    movable: frozenset[Name] | None = None,
    name_of: Callable[[Name], str] = op_text,
) -> Plan:
    """Return the cheapest schedule of a program that fits a budget.

    The peak is at most the program's own peak and at most the budget. A smaller budget for the same program never
    gives a higher peak.

    Args:
        graph: the program.
        budget: peak increase allowed: bytes, ``"512 MiB"``, or ``"60%"`` of the program's own. None: the
            lowest peak that an order alone, without extra cost, can reach.
        order: ``"auto"`` searches for an order, ``"program"`` keeps the program's. A function of the graph
            returns an order as op indices; first computations stay in that order.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back.
        bandwidth: bytes moved in the time of one unit of op cost; see `recompute.model.default_bandwidth`.
        time_limit_s: when to stop searching (seconds of work; on a busy machine at most three times as long). The
            search of a few hundred ops ends earlier, so its plan depends on the seed alone.
        seed: seed of the random moves.
        known: more schedules to start from, as names of ops. A repeated name is a recompute.
        movable: the buffers that may be moved; None for all that the program makes.
        name_of: returns the name of an op for messages.

    Returns:
        The plan.

    Raises:
        BudgetError: no plan fits. `best` is the lowest plan that was found.
        OrderError: the order is unknown, or the function returned an order that is not valid.
        OptionError: another argument has a wrong type or is out of its range.
        SizeError: the budget cannot be read.
    """
    request = PlanRequest(order, recompute, offload, bandwidth, time_limit_s, seed, movable, name_of)
    request.check()
    clock = Clock.of(time_limit_s)
    tokens = [np.array([graph.op_index[name] for name in order], dtype=np.int64) for order in known]
    return plan_before(graph, budget, request, clock, tokens)


def best_order(graph: Graph, *, time_limit_s: float = 10.0, seed: int = 0) -> OrderResult:
    """Return an order of the ops with a low peak, never above the peak of program order.

    Args:
        graph: the program.
        time_limit_s: when to stop (seconds). The search of a small program ends earlier, so its result depends on the
            seed alone.
        seed: seed of the random moves.

    Returns:
        The order, its peak and the best lower bound.
    """
    return _lowest_order(graph, seed, Clock.of(time_limit_s))


def plan_before(
    graph: Graph,
    budget: int | float | str | None,
    request: PlanRequest,
    clock: Clock,
    known: Sequence[IntArray] = (),
) -> Plan:
    """Return the plan that `plan_graph` describes, before `clock` is over."""
    history = _HISTORY.setdefault(graph, {}).setdefault(replace(request, time_limit_s=0.0), _History())
    if budget is None:
        result = _order(graph, request, history, clock)
        found = PricedSchedule(result.order, result.peak_bytes, 0.0)
        return _plan(graph, found, result.lower_bound_bytes, None, history.notes(None))
    clock = clock.share(0.9 if graph.num_ops <= _LARGEST_QUICK else 0.8)  # bounds and checks take the rest
    program_bytes = program_peak(graph).peak_bytes
    allowed = parse_budget(budget, program_bytes - graph.baseline_bytes)
    total = allowed + graph.baseline_bytes
    if history.wants_search(total, request.time_limit_s) or known:
        known = [*known, *history.lowest_above(total)]
        history.others.append(_search(graph, request, history, total, clock, known=known))
    best = history.choose(total)
    if best.peak_bytes > total:
        lowest = _plan(graph, best, history.bound(graph, request), None, history.notes(total))
        raise _budget_error(graph, allowed, lowest, request, is_cut=clock.is_over())
    history.answers[total] = best
    return _plan(graph, best, history.bound(graph, request), allowed, history.notes(total))


def _order(graph: Graph, request: PlanRequest, history: _History, clock: Clock) -> OrderResult:
    known = history.order
    is_new = history.wants_search(None, request.time_limit_s)
    if request.order != "auto":
        order = request.order if callable(request.order) else lambda program: range(program.num_ops)
        known = known or custom_order(graph, order)
    elif known is None or (is_new and not known.proven):
        found = _lowest_order(graph, request.seed, clock, partial(history.has_kernels, None))
        known = found if known is None or found.peak_bytes < known.peak_bytes else known
        if known.proven:  # a search would find nothing better
            history.in_python.discard(None)
    history.order = known
    return known


def _lowest_order(
    graph: Graph, seed: int, clock: Clock, has_kernels: Callable[[Clock], bool] = prepare
) -> OrderResult:
    """Return the result that `best_order` describes, before `clock` is over."""
    program = custom_order(graph, lambda program: range(program.num_ops), "program")
    if program.proven:
        return program
    return find_order(graph, seed=seed, clock=clock) if has_kernels(clock) else greedy_order(graph, clock)


def _search(
    graph: Graph,
    request: PlanRequest,
    history: _History,
    budget_bytes: int,
    clock: Clock,
    *,
    known: Sequence[IntArray],
) -> PricedSchedule:
    movable = movable_buffers(graph, request.movable) if request.offload else None
    costs = move_costs(graph, request.bandwidth) if request.offload else None
    keeps_order = request.order != "auto"
    model = recompute_model(graph, movable, costs, recompute=request.recompute, keeps_order=keeps_order)
    is_custom = callable(request.order)
    first = _order(graph, request, history, clock).order if is_custom else np.arange(graph.num_ops)
    found = priced_order(graph, first)
    if found.peak_bytes <= budget_bytes:
        return found
    has_kernels = history.has_kernels(budget_bytes, clock)
    starts = [first]
    if request.order == "auto":
        best = _order(graph, request, history, clock.share(0.3)).order
        if not np.array_equal(best, first):
            starts.append(best)
    has_seeds = request.recompute and not is_custom
    if not has_kernels:
        repeating = chain(known, even_seeds(graph)) if has_seeds else ()
        return GreedySearch(graph, model, budget_bytes, clock).run(starts, repeating)
    search = RecomputeSearch(graph, model, Terms(budget_bytes, keeps_order, request.seed, clock))
    if has_seeds:
        return search.run(starts, lambda budget: [*known, *seeds(graph, budget)])
    return search.run(starts)


def _plan(
    graph: Graph, found: PricedSchedule, bound_bytes: int, allowed: int | None, notes: list[str]
) -> Plan:
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
        # the costs are summed in another order, so the last bits may differ
        extra_cost_ratio=extra if extra > _ROUNDING else 0.0,
        extra_time_ratio=_extra_time(graph, found.tokens),
        moved_bytes=moved_bytes(graph, schedule),
        budget_bytes=allowed,
        fingerprint=fingerprint(graph),
        graph=graph,
        notes=notes,
    )


def _extra_time(graph: Graph, tokens: IntArray) -> float | None:
    """Return the recorded time of the repeated ops, as a share of all ops; None without recorded times."""
    total_ns = int(graph.op_time_ns.sum())
    if not total_ns:
        return None
    count = np.bincount(tokens[tokens < graph.num_ops], minlength=graph.num_ops)
    return int((graph.op_time_ns * (count - 1)).sum()) / total_ns


def _budget_error(
    graph: Graph,
    allowed: int,
    best: Plan,
    request: PlanRequest,
    *,
    is_cut: bool,
) -> BudgetError:
    """Return the error: the lowest peak found, the reason why no plan fits, and the next step.

    Args:
        graph: the program.
        allowed: the budget (bytes).
        best: the plan with the lowest peak that was found.
        request: the options.
        is_cut: whether the time limit ended the search.
    """
    found = format_bytes(best.peak_increase_bytes)
    bound = format_bytes(best.lower_bound_bytes)
    lowest = f"no plan fits {format_bytes(allowed)}: the lowest peak increase found is {found}"
    error = partial(BudgetError, best=best, bound_bytes=best.lower_bound_bytes)
    if allowed >= best.lower_bound_bytes:
        there = at_peak(graph, best.schedule, request.name_of)
        reason = f"{lowest}; {there}" if there else lowest
        reason += f"; the lower bound is {bound}, so a plan may exist"
        reason += ": a longer time limit may find it" if is_cut else ""
        reason = "; ".join([reason, *best.notes])
        waits = there is not None and there.once_bytes > 0 and not request.offload
        return error(reason, options=("offload",) if waits else ())
    if not (request.recompute or request.offload):
        return error(f"{lowest}. No order goes below {bound}", options=("recompute", "offload"))
    bound_bytes = best.lower_bound_bytes + graph.baseline_bytes
    if pinned_bound(graph) >= bound_bytes:
        return error(
            f"{lowest}. No plan goes below {bound}, which stays alive at the end",
            advice="raise the budget, or keep less alive at the end",
        )
    needs = working_sets(graph)
    most_bytes = int(needs.max(initial=0)) - graph.baseline_bytes
    if allowed >= most_bytes:  # offload can move everything else out of memory, so it could fit
        reason = f"{lowest}. No plan goes below {bound}: tensors that later ops need are alive beside the large ops"
        return error(reason, options=("offload",))
    op = request.name_of(graph.op_names[int(needs.argmax())])
    least = format_bytes(most_bytes)
    return error(
        f"{lowest}. No plan goes below {least}: {op} needs that for its inputs, outputs and workspace"
    )
