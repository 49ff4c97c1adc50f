"""Return the page's sections about a plan and about leaks as plain data. Leaks also have a page of their own."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.leaks import LeakKind
from memwatch.report.page.columns import pack_frame
from memwatch.report.page.privacy import PathHider
from memwatch.report.plan import (
    Places,
    PlanFigures,
    check_belongs,
    check_words,
    checkpoints_apply,
    compile_call,
    moves_by_module,
    peak_words,
    plan_curves,
)
from memwatch.report.plan_terminal import cheapest, trade_off
from memwatch.sizes import format_bytes, format_duration
from memwatch.text import visible
from memwatch.words.leaks import (
    CYCLE,
    PATH_FROM_ROOT,
    beside_phrase,
    page_headline,
    page_to_do,
    sizes_of,
    sizes_phrase,
)
from memwatch.words.places import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memwatch.analysis.reading import DeviceReading
    from memwatch.kinds.edges import Vertex
    from memwatch.leaks import Leak
    from memwatch.planner.plan import Plan
    from memwatch.report.page.columns import Words
    from memwatch.report.plan import ModuleMoves, Replayed

STEPS_SHOWN: Final = 200
"""Most single moves that one entry lists. A guess."""
_NEIGHBOURS: Final = ("program_step", "program_bytes", "plan_step", "plan_bytes")
"""Columns of a plan's curves that are packed as differences, because neighbouring values are similar."""
MODEL_VERSION: Final = 1
"""The version of the format of the page about leaks."""
_PLACE: Final = re.compile(r"(.+):\d+\b", re.DOTALL)


def plan_model(
    reading: DeviceReading,
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


def leak_page_model(leaks: Sequence[Leak], *, title: str, source: bool) -> dict[str, Any]:
    """Return the content of the page about leaks: its title, and the content of `leak_model`."""
    hide = visible if source else _hider(leaks)
    return {"model": MODEL_VERSION, "title": hide(title), **leak_model(leaks, hide, source=source)}


def leak_model(leaks: Sequence[Leak], hide: Callable[[str], str], *, source: bool) -> dict[str, Any]:
    """Return the content of a section: `headline`, `to_do`, `totals`, `kinds` and `leaks`, the largest leak first.

    Args:
        leaks: the leaks.
        hide: rewrites texts for the page.
        source: whether the page may show lines of the program.
    """
    ordered = sorted(leaks, key=lambda leak: -leak.nbytes)
    return {
        "headline": hide(page_headline(ordered, [_repeat(leak) for leak in ordered])) if ordered else "",
        "to_do": hide(page_to_do([leak.holder for leak in ordered])) if ordered else "",
        "totals": _sums(ordered),
        "kinds": [
            {
                "kind": kind,
                "label": kind.row.label,
                "meaning": kind.row.meaning,
                **_sums(leak for leak in ordered if leak.kind is kind),
            }
            for kind in LeakKind
            if any(leak.kind is kind for leak in ordered)
        ],
        "leaks": [_leak(leak, hide, source=source) for leak in ordered],
    }


def leak_files(leaks: Iterable[Leak]) -> set[str]:
    """Collect the source files that leaks name, as recorded and as their texts show them."""
    shown, files = set(), set()
    for leak in leaks:
        if leak.site:  # recorded as text
            match = _PLACE.match(leak.site)
            shown.add(match[1] if match else leak.site)
        for edge in (*leak.edges, *([leak.cut] if leak.cut else [])):
            files.add(edge.file)
            for vertex in (edge.owner, edge.target, edge.reader):
                files.update(_files(vertex))
    known = {file for file in files if file}
    return shown | known | {place(file, None) for file in known}


def _files(vertex: Vertex | None) -> Iterator[str | None]:
    while vertex is not None:
        yield vertex.file
        vertex = vertex.inner


def _sums(leaks: Iterable[Leak]) -> dict[str, Any]:
    counted = list(leaks)
    sizes = sizes_of(counted)
    return {
        "sizes": [{"device": visible(name), "nbytes": nbytes} for name, nbytes in sizes.items()],
        "text": sizes_phrase(sizes),
        "count": sum(leak.count for leak in counted),
        "groups": len(counted),
    }


def _repeat(leak: Leak) -> str:
    """Return the name of the call if each call adds the bytes of the leak, else ""."""
    return leak.repeat if leak.per_call and leak.every == 1 else ""


def _leak(leak: Leak, hide: Callable[[str], str], *, source: bool) -> dict[str, Any]:
    # the program has dropped a cycle, so its age counts; a retained tensor may be meant to live for long
    held = f"{format_duration(leak.held_s * 1e9)} so far" if leak.kind == "cycle" else ""
    return {
        "kind": leak.kind.value,
        "label": leak.kind.row.label,
        "nbytes": leak.nbytes,
        "device": visible(leak.device),
        "count": leak.count,
        "repeat": leak.repeat if leak.per_call else "",
        "holder": hide(leak.holder),
        "reference": hide(leak.reference),
        "site": hide(leak.site or ""),
        "added_at": hide(leak.added_at) if source else "",  # this text contains code
        "tensor": hide(leak.tensor),
        "path": [hide(line) for line in leak.path],
        "path_title": PATH_FROM_ROOT if leak.kind.is_reached else CYCLE,
        "advice": hide(leak.advice),
        "held": held,
        "beside": hide(beside_phrase(leak.beside)),
    }


def _hider(leaks: Sequence[Leak]) -> Callable[[str], str]:
    hide_paths = PathHider(leak_files(leaks))
    return lambda text: visible(hide_paths(text))
