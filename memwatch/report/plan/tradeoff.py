"""Plans of one program for several budgets, to show what each step to less memory costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from memwatch.planner.clock import Clock
from memwatch.planner.errors import BudgetError
from memwatch.planner.plan import Plan
from memwatch.planner.plan_search import plan_graph
from memwatch.planner.schedule import StepKind

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARES_PERCENT: Final = (90, 80, 70, 60, 50, 40, 30)
TIME_LIMIT_S: Final = 10.0


def trade_off(
    plan: Plan, *, shares: Sequence[float] = SHARES_PERCENT, time_limit_s: float = TIME_LIMIT_S
) -> list[Plan]:
    """Return plans of the same program for several budgets; they move buffers only if `plan` does.

    A plan of the list that fits the budget of `plan` never costs more than `plan`. Where it costs less, planning for
    the same budget again returns it at once.

    Args:
        plan: a plan that knows its program (not one read from a file).
        shares: budgets, per cent of the program's own peak increase.
        time_limit_s: time to search, for all budgets together (seconds).

    Returns:
        The plans, from the largest budget down. The first budget that cannot be reached ends the list with
        the lowest plan that was found for it. The list is empty where the plan knows no program.
    """
    graph, found = plan.graph, []
    if graph is None or not plan.program_peak_increase_bytes:
        return []
    kinds = set(plan.schedule.kind.tolist())
    clock = Clock.of(time_limit_s)
    for share in sorted(shares, reverse=True):
        try:
            found.append(
                plan_graph(
                    graph,
                    budget=f"{share}%",
                    offload=StepKind.OFFLOAD in kinds,
                    time_limit_s=time_limit_s / len(shares),
                )
            )
        except BudgetError as error:
            if isinstance(error.best, Plan):
                found.append(error.best)
            break
        if clock.is_over():
            break
    return [_best_of(plan, each) for each in found]


def _best_of(plan: Plan, other: Plan) -> Plan:
    """Return the cheaper one of two plans for the budget of the other; only a plan that fits it counts."""
    budget = other.budget_bytes
    if budget is None or plan.peak_increase_bytes > budget or plan.extra_cost_ratio >= other.extra_cost_ratio:
        return other
    return replace(plan, budget_bytes=budget)


def cheapest(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that no other plan beats in both peak and cost, highest peak first."""
    by_peak = sorted(plans, key=lambda plan: (plan.peak_increase_bytes, plan.extra_cost_ratio))
    front: list[Plan] = []
    for plan in by_peak:
        if not front or plan.extra_cost_ratio < front[-1].extra_cost_ratio:
            front.append(plan)
    return front[::-1]
