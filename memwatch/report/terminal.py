"""The summary that a terminal shows: the total first, then what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from memwatch.analysis.findings.finding import LEAST_RATIO, short_site
from memwatch.report.console import CATEGORY_STYLE, bar, clip, head, line_width, name, tail, to_text
from memwatch.report.facts import (
    bytes_by,
    evidence_bytes,
    evidence_text,
    is_recorded,
    peak_instant,
    recomputed,
    saved_for_backward,
    with_own_lines,
)
from memwatch.report.layers import repeated_layers
from memwatch.report.meta import format_duration
from memwatch.report.plan.places import Places
from memwatch.report.plan.terminal import plan_parts
from memwatch.sizes import format_bytes
from memwatch.words.allocators import reserved_at_peak_text
from memwatch.words.findings import holder_at

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from memwatch.planner.plan import Plan
    from memwatch.report.plan.figures import Replayed
    from memwatch.report.source import Reading

BAR_WIDTH: Final = 30
FIGURES_WIDTH: Final = 22
"""Characters that a size and a share take of a line."""


def summary(
    reading: Reading,
    *,
    plan: Plan | None = None,
    result: Replayed | None = None,
    width: int | None = None,
    color: bool | None = None,
    rows: int = 8,
) -> str:
    """Return a screenful of text: what the peak is made of, and how a plan lowers it.

    Args:
        reading: a profile, from `memwatch.profile` or `memwatch.load`.
        plan: a plan of this reading; it comes last.
        result: result of `memwatch.replay` on the plan.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal, and never with NO_COLOR.
        rows: most rows in each table.

    Returns:
        The text, ending with a newline.

    Raises:
        PlanMismatchError: the result belongs to another plan.
    """
    line = line_width(width)
    parts: list[RenderableType] = [_headline(reading), ""]
    if len(reading.at_peak):
        parts += _made_of(reading, rows, line)
    if reading.findings:
        parts += ["", "Findings: each would lower the peak", _findings(reading, rows)]
    elif (reading.at_peak["holder"] != "").any():
        parts += ["", f"Findings: none that would lower the peak by {LEAST_RATIO * 100:.0f} % or more"]
    if plan is not None:
        parts += ["", *plan_parts(plan, result, Places(reading), rows, line)]
    if reading.notes:
        parts += ["", "What memwatch could not see, or did differently", *_notes(reading)]
    return to_text(*(_title(part) for part in parts), width=line, color=color)


def _made_of(reading: Reading, rows: int, line: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_categories(reading), ""]
    parts += ["Largest storages at the peak", _storages(reading, rows, line), ""]
    if (reading.modules["inclusive_bytes"] > 0).any():
        parts += ["Modules at the peak, with their children", _modules(reading, rows, line), ""]
    parts += ["Lines that made what is alive at the peak", _lines(reading, rows, line), ""]
    if (reading.at_peak["holder"] != "").any():
        parts += ["Who holds it at the peak", _holders(reading, rows, line), _looks(reading), ""]
    if is_recorded(reading, "saved tensors"):
        parts += [_saved(reading), *_recomputed(reading)]
    return [*parts, _phases(reading)] if is_recorded(reading, "uses") else parts


def _title(part: RenderableType) -> RenderableType:
    return Text(part, style="bold") if isinstance(part, str) else part


def _headline(reading: Reading) -> Text:
    at = peak_instant(reading)
    text = Text("Peak ")
    text.append(format_bytes(reading.peak_bytes), style="bold red")
    entered, grown = format_bytes(reading.baseline_bytes), format_bytes(reading.peak_increase_bytes)
    text.append(f" = {entered} at entry + {grown} increase ({clip(reading.device, 40)})\n")
    when = f", {format_duration(at.time_ns)} after entry" if is_recorded(reading, "times") else ""
    text.append(clip(f"{at}{when}"))
    return text.append_text(_reserved(reading)).append_text(_other_devices(reading))


def _reserved(reading: Reading) -> Text:
    """Return a line about what the allocator of an accelerator holds, empty where it keeps nothing."""
    held = reading.reserved
    return Text() if held is None else Text(f"\n{clip(reserved_at_peak_text(held))}")


def _other_devices(reading: Reading) -> Text:
    """Return a line for each other device, and how to see what its peak is made of."""
    others = [device for device in reading.devices if device != reading.device]
    text = Text()
    for device in others:
        there = reading.on(device)
        entered, grown = format_bytes(there.baseline_bytes), format_bytes(there.peak_increase_bytes)
        text.append("\nPeak ").append(format_bytes(there.peak_bytes), style="bold")
        text.append(f" = {entered} at entry + {grown} increase ({clip(device, 40)})")
    if others:
        how = f'The tables are about {reading.device}; of {others[0]}: --device {others[0]}, prof.on("{others[0]}")'
        text.append(f"\n{clip(how)}", style="dim")
    return text


def _table(*headings: str) -> Table:
    """Return a table without lines; a column whose heading ends in `>` holds numbers, aligned right."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(
            heading.rstrip(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _share(nbytes: float, reading: Reading) -> str:
    return f"{100 * nbytes / (reading.peak_bytes or 1):.1f} %"


def _categories(reading: Reading) -> Table:
    table = _table("Category", "Bytes>", "Share>", "", "Storages>")
    for category, row in bytes_by(reading.at_peak, "category").iterrows():
        style = CATEGORY_STYLE.get(str(category), "")
        filled = bar(row["nbytes"] / (reading.peak_bytes or 1), BAR_WIDTH, style)
        cells = (format_bytes(row["nbytes"]), _share(row["nbytes"], reading), filled, f"{row['count']:,}")
        table.add_row(name(str(category), style), *cells)
    return table


def _storages(reading: Reading, rows: int, line: int) -> Table:
    room = line - FIGURES_WIDTH - 18
    table = _table("Bytes>", "Share>", "Category", "Name", "Tensor")
    for _, row in reading.at_peak.head(rows).iterrows():
        category = name(row["category"], CATEGORY_STYLE.get(row["category"], ""))
        cells = (category, tail(row["name"], room * 3 // 5), head(row["tensor"], room * 2 // 5))
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), *cells)
    _add_rest(table, reading.at_peak["nbytes"].iloc[rows:], reading)
    return table


def _add_rest(table: Table, rest: pd.Series[int], reading: Reading) -> None:
    if len(rest):
        more = Text(f"{len(rest):,} more", style="dim")
        table.add_row(format_bytes(rest.sum()), _share(rest.sum(), reading), more)


def _modules(reading: Reading, rows: int, line: int) -> Table:
    room = line - FIGURES_WIDTH - 28
    table = _table("Bytes>", "Share>", "Own>", "For backward>", "Module", "Class")
    largest = reading.modules[reading.modules["inclusive_bytes"] > 0].sort_values(
        "inclusive_bytes", ascending=False, kind="stable"
    )
    for module, row in largest.head(rows).iterrows():
        sizes = (format_bytes(row[column]) for column in ("own_bytes", "saved_bytes"))
        names = (tail(str(module) or "(root)", room * 3 // 5), head(row["class_name"], room * 2 // 5))
        table.add_row(
            format_bytes(row["inclusive_bytes"]), _share(row["inclusive_bytes"], reading), *sizes, *names
        )
    return table


def _lines(reading: Reading, rows: int, width: int) -> Table:
    table = _table("Bytes>", "Share>", "Line", "Storages>")
    groups = bytes_by(with_own_lines(reading.at_peak), "line")
    for line, row in groups.head(rows).iterrows():
        where = tail(str(line), width - FIGURES_WIDTH - 10)
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), where, f"{row['count']:,}")
    _add_rest(table, groups["nbytes"].iloc[rows:], reading)
    return table


def _holders(reading: Reading, rows: int, line: int) -> Table:
    """Return bytes by kind of holder, and of each kind the largest holder with the bytes that it has itself."""
    table = _table("Bytes>", "Share>", "Storages>", "Kind", "Largest of these")
    room = line - FIGURES_WIDTH - 32
    peak = reading.at_peak
    for kind, row in bytes_by(peak, "holder_kind").head(rows).iterrows():
        largest = bytes_by(peak[peak["holder_kind"] == kind], "holder")["nbytes"]
        told = "".join(map(str, largest.index[:1]))
        if len(largest) > 1:
            told = f"{format_bytes(largest.iloc[0])}: {told}"
        words = (f"{row['count']:,}", head(str(kind), 18), head(told, room))
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), *words)
    return table


def _phases(reading: Reading) -> Text:
    sums = bytes_by(reading.at_peak, "phase")["nbytes"]
    idle = [f"; {name} {format_bytes(sums[name])}" for name in ("lag", "drag", "void") if sums.get(name, 0)]
    if sums.get("", 0):
        idle.append(f"; not known {format_bytes(sums[''])}")
    if any(kind == "threads" for kind, _ in reading.notes):
        idle.append(" (other threads ran: their uses are not seen)")
    return Text(f"In use at the peak: {_share(sums.get('use', 0), reading)}{''.join(idle)}")


def _saved(reading: Reading) -> Text:
    saved = saved_for_backward(reading)
    only = saved.nbytes - saved.held_anyway_bytes
    text = Text("Saved for backward: ")
    text.append(f"{100 * saved.share_ratio:.1f} % of the peak", style="bold")
    text.append(f" ({format_bytes(only)}) is there only for backward")
    if saved.held_anyway_bytes:
        text.append(f"; {format_bytes(saved.held_anyway_bytes)} more is saved but lives anyway")
    layers = repeated_layers(reading)
    return text if layers is None else text.append("\n").append(clip(str(layers)))


def _recomputed(reading: Reading) -> list[Text]:
    again = recomputed(reading)
    if again is None:
        return []
    share, instead = _share(again.at_peak_bytes, reading), format_bytes(again.instead_bytes)
    text = Text("Computed again in backward: ")
    text.append(f"{format_bytes(again.at_peak_bytes)} at the peak", style="bold")
    return [text.append(f" ({share}); to keep it all from forward on would take up to {instead}")]


def _findings(reading: Reading, rows: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in list(reading.findings)[:rows]:
        held = holder_at(finding.holder, short_site(finding.site), getattr(finding, "remark", ""))
        words = Text(clip(f"{finding.kind}: {held}"), style="bold")
        words.append(f"\n{clip(finding.advice)}", style="not bold")
        table.add_row(format_bytes(finding.nbytes), words)
    if len(reading.findings) > rows:
        table.add_row("", Text(f"{len(reading.findings) - rows:,} more", style="dim"))
    return table


def _looks(reading: Reading) -> Text:
    count, time_ns = int(reading.meta.get("holder_samples", 0)), int(reading.meta.get("holder_samples_ns", 0))
    cut = int(reading.meta.get("holder_samples_cut", 0))
    limit = f"; {cut:,} of them came to their limit and may have missed some" if cut else ""
    known = evidence_text(evidence_bytes(reading))
    return Text(
        f"{known}\nFound by looking {count:,} times, which took {format_duration(time_ns)}{limit}",
        style="dim",
    )


def _notes(reading: Reading) -> list[Text]:
    return [Text(clip(f"- {kind}: {text}"), overflow="fold") for kind, text in reading.notes]
