"""The page's section on a plan, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from memwatch.report.page.columns import pack_frame
from memwatch.report.plan.figures import PlanFigures, check_belongs, check_words, peak_words, plan_curves
from memwatch.report.plan.moves import Places, checkpoints_apply, compile_call, moves_by_module
from memwatch.report.plan.terminal import cheapest, trade_off
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.plan import Plan
    from memwatch.report.page.columns import Words
    from memwatch.report.plan.figures import Replayed
    from memwatch.report.plan.moves import ModuleMoves
    from memwatch.report.source import Reading

STEPS_SHOWN: Final = 200
"""Most single moves that one entry lists."""


def plan_model(
    reading: Reading,
    plan: Plan,
    *,
    tradeoff: Sequence[Plan] | None,
    replayed: Replayed | None,
    words: Words,
    hide: Callable[[str], str],
) -> dict[str, Any]:
    """Return the part of the page that shows a plan.

    Args:
        reading: the recording that was planned.
        plan: the plan.
        tradeoff: plans for other budgets. If None, this function searches for them.
        replayed: result of a replay of the plan.
        words: the texts of the page.
        hide: rewrites texts for the page.

    Returns:
        `headline`, `to_do`, `figures`, `replayed`, `moves`, `tradeoff` and `curves` (a packed
            table, or None if the plan has no program).

    Raises:
        PlanMismatchError: the result belongs to another plan.
    """
    if replayed is not None:
        check_belongs(plan, replayed)
    places = Places(reading)
    figures = PlanFigures.of(plan)
    curves = plan_curves(plan, places)
    others = trade_off(plan) if tradeoff is None else list(tradeoff)
    moves = moves_by_module(plan, places)
    return {
        "headline": plan_headline(figures),
        "to_do": plan_to_do(plan, moves),
        "figures": {
            **asdict(figures),
            "share_ratio": figures.share_ratio,
            "gap_bytes": figures.gap_bytes,
            "gap": figures.gap_words,
            "steps": len(plan.schedule),
        },
        "replayed": None if replayed is None else _replayed(replayed),
        "moves": [_moves(each, hide) for each in moves],
        "tradeoff": _tradeoff(plan, others),
        "curves": None if curves is None else pack_frame(curves, words, delta=("at", *_NEIGHBOURS)),
    }


_NEIGHBOURS: Final = ("program_step", "program_bytes", "plan_step", "plan_bytes")


def plan_headline(figures: PlanFigures) -> str:
    """Return how far the plan lowers the peak increase, and its cost, in a sentence."""
    if figures.plan_bytes >= figures.program_bytes:
        lowest = ", and no plan can be lower" if not figures.gap_bytes else ""
        return f"The plan does not lower the peak increase of {format_bytes(figures.program_bytes)}{lowest}."
    cost = "for no extra work"
    if figures.extra_cost_ratio or figures.moved_bytes:
        cost = f"for {100 * figures.extra_cost_ratio:.1f} % more work"
    return (
        f"The plan lowers the peak increase from {format_bytes(figures.program_bytes)} to "
        f"{format_bytes(figures.plan_bytes)} {cost}."
    )


def plan_to_do(plan: Plan, moves: Sequence[ModuleMoves]) -> str:
    """Return how to train with the plan, in a sentence; "" if it changes nothing."""
    if not moves:
        return ""
    if checkpoints_apply(moves):
        return "To train with it, call `memwatch.apply_plan(model, plan)`, which checkpoints modules by this plan."
    return (
        f"To train with it, use `{compile_call(plan)}`, because only a compiler can change the order of ops."
    )


def _replayed(replayed: Replayed) -> dict[str, Any]:
    return {
        "peak_bytes": replayed.peak_increase_bytes,
        "as_planned": replayed.peak_increase_bytes == replayed.planned_bytes,
        "peak": peak_words(replayed),
        "check": check_words(replayed),
        "identical": replayed.identical,
        "max_abs_diff": "" if replayed.identical is None else f"{replayed.max_abs_diff:g}",
        "duration_ns": round(replayed.duration_s * 1e9),
    }


def _moves(moves: ModuleMoves, hide: Callable[[str], str]) -> dict[str, Any]:
    return {
        "label": hide(moves.label),
        "modules": [hide(module) for module in moves.modules[:STEPS_SHOWN]],
        "words": hide(moves.words()),
        "cost_ratio": moves.cost_ratio,
        "steps": [hide(step) for step in moves.steps[:STEPS_SHOWN]],
        "more": max(0, len(moves.steps) - STEPS_SHOWN),
    }


def _tradeoff(plan: Plan, others: Sequence[Plan]) -> list[dict[str, Any]]:
    program_bytes = plan.program_peak_increase_bytes
    shown = [each for each in cheapest([plan, *others]) if each is not plan]
    points = [
        {
            "budget_bytes": each.budget_bytes,
            "peak_bytes": each.peak_increase_bytes,
            "share_ratio": each.peak_increase_bytes / program_bytes if program_bytes else 1.0,
            "extra_cost_ratio": each.extra_cost_ratio,
            "moved_bytes": each.moved_bytes,
            "shown": each is plan,
        }
        for each in (plan, *shown)
    ]
    return sorted(points, key=lambda point: (-point["peak_bytes"], point["extra_cost_ratio"]))
