"""A plan and its execution as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.planner.plan import Plan
    from memwatch.report.plan.figures import Replayed
    from memwatch.report.records.schema import PlanRecord, ReplayRecord


def plan_record(plan: Plan, replayed: Replayed | None = None) -> PlanRecord:
    """Return the figures of a plan, and of its execution where it was executed."""
    return {
        "program_peak_increase_bytes": plan.program_peak_increase_bytes,
        "peak_increase_bytes": plan.peak_increase_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "budget_bytes": plan.budget_bytes,
        "extra_cost_ratio": plan.extra_cost_ratio,
        "extra_time_ratio": plan.extra_time_ratio,
        "moved_bytes": plan.moved_bytes,
        "replay": None if replayed is None else _replay(replayed),
    }


def _replay(replayed: Replayed) -> ReplayRecord:
    return {
        "peak_increase_bytes": replayed.peak_increase_bytes,
        "planned_bytes": replayed.planned_bytes,
        "identical": replayed.identical,
        "num_checked": replayed.num_checked,
        "max_abs_diff": replayed.max_abs_diff,
        "synthetic": replayed.synthetic,
        "duration_s": replayed.duration_s,
    }
