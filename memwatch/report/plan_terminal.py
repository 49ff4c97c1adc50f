"""A plan as text for a terminal: the peak before and after, what it costs, what it does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from memwatch.planner.peak import StepKind
from memwatch.planner.plan import BudgetError, Plan
from memwatch.planner.plan_search import plan_graph
from memwatch.planner.request import Clock
from memwatch.report.console import bar, clip, head, line_width, name, to_text
from memwatch.report.plan import (
    Places,
    PlanFigures,
    check_belongs,
    check_words,
    checkpoints_apply,
    compile_call,
    moves_by_module,
    peak_words,
)
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from memwatch.analysis.reading import DeviceReading
    from memwatch.report.plan import ModuleMoves, Replayed

BAR_WIDTH: Final = 30
"""Characters of the longest bar. A guess."""
SHARES_PERCENT: Final = (90, 80, 70, 60, 50, 40, 30)
"""Budgets that the trade-off tries, in percent of the peak of the program. A guess."""
TIME_LIMIT_S: Final = 10.0
"""Seconds that the trade-off may take. A guess."""


def plan_summary(
    plan: Plan,
    result: Replayed | None = None,
    *,
    reading: DeviceReading | None = None,
    tradeoff: Sequence[Plan] = (),
    width: int | None = None,
    color: bool | None = None,
    rows: int = 10,
) -> str:
    """Return a screenful of text: what a plan saves, what it costs and what it does.

    Args:
        plan: a plan of `memwatch.plan`.
        result: result of `memwatch.replay`, if the plan was replayed.
        reading: the recording that was planned; it supplies the names of ops and modules.
        tradeoff: plans for other budgets, from `memwatch.report.trade_off`.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal, and never with NO_COLOR.
        rows: most rows in each table.

    Returns:
        The text, ending with a newline.

    Raises:
        PlanMismatchError: the result belongs to another plan.
    """
    line = line_width(width)
    parts = plan_parts(plan, result, Places(reading), rows, line)
    if tradeoff:
        parts += ["", Text("What other budgets cost", style="bold"), _tradeoff(tradeoff)]
    return to_text(*parts, width=line, color=color)


def plan_parts(
    plan: Plan, result: Replayed | None, places: Places, rows: int, line: int
) -> list[RenderableType]:
    """Return the parts of `plan_summary`, for lines of `line` characters."""
    if result is not None:
        check_belongs(plan, result)
    figures = PlanFigures.of(plan)
    parts: list[RenderableType] = [_headline(figures), "", _peaks(figures, result)]
    parts += [Text(f"Note: {note}") for note in plan.notes]
    moves = moves_by_module(plan, places)
    if moves:
        parts += ["", Text("What the plan does", style="bold"), _moves(moves, rows, line)]
        parts += ["", Text("To train with it", style="bold"), _how_to_train(plan, moves)]
    return parts


def _how_to_train(plan: Plan, moves: Sequence[ModuleMoves]) -> Text:
    """Return the calls that apply a plan. Checkpoints can only recompute; the backend can reorder and offload too."""
    backend = compile_call(plan)
    if checkpoints_apply(moves):
        applied = "memwatch.apply_plan(model, plan), which checkpoints modules by this plan"
        return Text(f"{applied}\nor {backend}, which plans anew")
    return Text(f"{backend}, which plans anew: only a compiler can change the order of ops")


def _headline(figures: PlanFigures) -> Text:
    text = Text("Plan: peak increase ")
    text.append(format_bytes(figures.plan_bytes), style="bold green")
    text.append(f", {100 * figures.share_ratio:.1f} % of the program's\n")
    text.append(f"It adds {100 * figures.extra_cost_ratio:.1f} % of work", style="bold")
    text.append(", counted in FLOPs and bytes moved")
    if figures.extra_time_ratio is not None:
        text.append(
            f"; the ops that it repeats took {100 * figures.extra_time_ratio:.1f} % of the recorded time"
        )
    if figures.moved_bytes:
        text.append(f"; {format_bytes(figures.moved_bytes)} are moved out and back")
    text.append(f"\nGap to the lower bound: {figures.gap_words}")
    if figures.only_orders:
        text.append(
            "\nWithout a budget, a plan only changes the order of the ops. With a budget, such as 60%, it also "
            "computes some ops again, and its peak can be much lower"
        )
    return text


def _peaks(figures: PlanFigures, result: Replayed | None) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = [("program", figures.program_bytes, "red", ""), ("plan", figures.plan_bytes, "green", "predicted")]
    if result is not None:
        took = f"{peak_words(result)}; {check_words(result)}; {result.duration_s:.3f} s"
        rows.append(("replayed", result.peak_increase_bytes, "green", took))
    if figures.budget_bytes is not None:
        rows.append(("budget", figures.budget_bytes, "blue", ""))
    bound = "no order of the ops is lower" if figures.only_orders else "no plan of this kind is lower"
    rows.append(("lower bound", figures.bound_bytes, "bright_black", bound))
    most = max(nbytes for _, nbytes, _, _ in rows) or 1
    for label, nbytes, style, words in rows:
        table.add_row(label, format_bytes(nbytes), bar(nbytes / most, BAR_WIDTH, style), Text(words))
    return table


def _moves(moves: list[ModuleMoves], rows: int, line: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    known = any(each.cost_ratio is not None for each in moves)  # not of a plan that was read from a file
    if known:
        table.add_column("Added work", justify="right", no_wrap=True)
    table.add_column("Module", no_wrap=True, overflow="ellipsis")
    table.add_column("", overflow="fold")
    for each in moves[:rows]:
        cost = "" if each.cost_ratio is None else f"{100 * each.cost_ratio:.1f} %"
        table.add_row(*[cost] * known, head(each.label, line // 3), Text(clip(each.words())))
    rest = moves[rows:]
    if rest:
        cost_ratio = sum(each.cost_ratio or 0.0 for each in rest)
        cost = f"{100 * cost_ratio:.1f} %" if cost_ratio else ""
        table.add_row(*[cost] * known, Text(f"{len(rest):,} more", style="dim"), "")
    return table


def _tradeoff(plans: Sequence[Plan]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("Budget", "Peak increase", "Share", "Added work"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    most = max((plan.extra_cost_ratio for plan in plans), default=0.0) or 1.0
    for plan in plans:
        figures = PlanFigures.of(plan)
        budget = "lowest" if figures.budget_bytes is None else format_bytes(figures.budget_bytes)
        cells = (budget, format_bytes(figures.plan_bytes), f"{100 * figures.share_ratio:.1f} %")
        cost = f"{100 * figures.extra_cost_ratio:.1f} %"
        table.add_row(
            *(name(cell) for cell in (*cells, cost)), bar(figures.extra_cost_ratio / most, BAR_WIDTH)
        )
    return table


def trade_off(
    plan: Plan, *, shares: Sequence[float] = SHARES_PERCENT, time_limit_s: float = TIME_LIMIT_S
) -> list[Plan]:
    """Return plans of the same program for several budgets; they move buffers only if `plan` does.

    For each budget that `plan` keeps, the plan of the list costs at most as much as `plan`.

    Args:
        plan: a plan that knows its program (not one read from a file).
        shares: budgets, per cent of the program's own peak increase.
        time_limit_s: time to search, for all budgets together (seconds).

    Returns:
        The plans, from the largest budget down. The first budget that cannot be reached ends the list with
        the lowest plan that was found for it. The list is empty if the plan knows no program.
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
    """Return `plan` with the budget of `other` if it fits that budget and costs less, otherwise `other`."""
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
