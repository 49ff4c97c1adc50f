"""What less memory costs: plans of one program for several budgets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from memwatch.planner.errors import BudgetError
from memwatch.planner.plan import Plan, plan_graph
from memwatch.planner.schedule import StepKind

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARES_PERCENT: Final = (90, 80, 70, 60, 50, 40, 30)
TIME_LIMIT_S: Final = 10.0


def trade_off(
    plan: Plan, *, shares: Sequence[float] = SHARES_PERCENT, time_limit_s: float = TIME_LIMIT_S
) -> list[Plan]:
    """Plan the same program for several budgets, with moves of the same kinds.

    Args:
        plan: a plan that knows its program (not one read from a file).
        shares: budgets, per cent of the program's own peak increase.
        time_limit_s: time to search, for all budgets together (seconds).

    Returns:
        The plans from the largest budget to the smallest that can be reached, the last one the lowest plan
        found; none where the plan knows no program.
    """
    graph, found = plan.graph, []
    if graph is None or not plan.program_peak_increase_bytes:
        return []
    kinds = set(plan.schedule.kind.tolist())
    deadline_s = time.monotonic() + time_limit_s
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
        if time.monotonic() > deadline_s:
            break
    return found


def cheapest(plans: Sequence[Plan]) -> list[Plan]:
    """Leave out plans that another one beats in peak and in cost; highest peak first."""
    by_peak = sorted(plans, key=lambda plan: (plan.peak_increase_bytes, plan.extra_cost_ratio))
    front: list[Plan] = []
    for plan in by_peak:
        if not front or plan.extra_cost_ratio < front[-1].extra_cost_ratio:
            front.append(plan)
    return front[::-1]
