"""The text of a job for a terminal: headline, ranks, categories and differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from rich.table import Table
from rich.text import Text

from memwatch.ranks.job import category_spreads, headline, totals
from memwatch.ranks.summary import told_what
from memwatch.report.console import category_style, clip, head, line_width, middle, name, to_text
from memwatch.report.terminal import finding_parts
from memwatch.sizes import format_bytes
from memwatch.words.places import place_in_file
from memwatch.words.ranks import COLUMNS, FINDINGS, IDLE, LOWER_PEAKS, MORE_DIFFER, UNKNOWN_FIGURES
from memwatch.words.storages import made_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from memwatch.ranks.job import Job

_NAME_WIDTH: Final = 28  # characters of a name; a guess
_FIGURE_WIDTH: Final = len("999.99 MiB")
_GAP: Final = 2
"""Blanks between columns."""


def summary(ranks: Job, *, rows: int = 8, width: int | None = None, color: bool | None = None) -> str:
    """Return a screenful of text on a job.

    Args:
        ranks: the job.
        rows: most rows in each table.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal, and never with NO_COLOR.
    """
    sentences = headline(ranks)
    parts: list[RenderableType] = [Text(sentences, style="bold")] if sentences else []
    parts += [_totals(ranks), "", _processes(ranks, rows, line_width(width)), Text(COLUMNS, style="dim")]
    parts += _more(len(ranks.ranks) - rows, *LOWER_PEAKS)
    if ranks.are_ranks and (spreads := category_spreads(ranks)):
        parts += ["", Text("The peaks by category", style="bold"), _categories(spreads)]
    if ranks.are_ranks and len(differing := ranks.differences):
        parts += ["", Text("Differences at the peaks", style="bold"), _differences(differing, rows)]
        parts += _more(len(differing) - rows, *MORE_DIFFER)
    if ranks.worst_reading is not None and (findings := ranks.worst_reading.findings):
        heading = FINDINGS.format(process=ranks.worst)
        parts += ["", Text(heading, style="bold"), *finding_parts(findings, rows, ranks.worst_reading)]
    for kind, text in ranks.notes:
        parts += ["", Text.assemble((f"{kind}: ", "bold"), clip(text, 800))]
    return to_text(*parts, width=width, color=color)


def _totals(ranks: Job) -> Text:
    found = totals(ranks)
    if not found.compared:
        return Text("memwatch could read no capture of these processes", style="bold")
    what = "rank" if found.are_ranks else "process"
    count = f"{found.compared} {what if found.compared == 1 else what + ('s' if found.are_ranks else 'es')}"
    text = f"{count} on {found.device}; highest peak {format_bytes(found.highest_bytes)} ({found.worst})"
    if found.compared > 1 and found.are_ranks:
        mean, lowest = format_bytes(found.mean_bytes), format_bytes(found.lowest_bytes)
        text += f", mean {mean}, lowest {lowest}"
    return Text(text)


def _figures_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, min_width=_FIGURE_WIDTH)
    return table


def _processes(ranks: Job, rows: int, line: int) -> Table:
    frame = ranks.ranks.sort_values("peak_bytes", ascending=False, kind="stable", na_position="last")
    communicate = bool((frame["communication_bytes"] > 0).any())
    table = _figures_table("Peak", "Increase", *(["Collectives"] if communicate else []))
    shown, hosts = frame.head(rows), frame["host"].nunique() > 1
    columns = {"Process": [str(process) for process in shown.index]}
    if hosts:
        columns["Host"] = [str(host or "?") for host in shown["host"]]
    room = line - (_FIGURE_WIDTH + _GAP) * len(table.columns)
    for heading, texts in columns.items():
        longest = min(max(map(len, texts)), _NAME_WIDTH)
        room -= max(longest, len(heading)) + _GAP
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=longest)
    table.add_column("At", no_wrap=True, overflow="ellipsis")
    for number, (_, row) in enumerate(shown.iterrows()):
        known = pd.notna(row["peak_bytes"])
        table.add_row(
            format_bytes(row["peak_bytes"]) if known else "?",
            format_bytes(row["peak_increase_bytes"]) if known else "",
            *([format_bytes(row["communication_bytes"]) if known else ""] if communicate else []),
            *(name(texts[number]) for texts in columns.values()),
            _where(row, room) if known else name(UNKNOWN_FIGURES),
        )
    return table


def _where(row: pd.Series[Any], room: int) -> Text:
    if not row["peak_bytes"]:
        return name(IDLE, style="dim")
    place = place_in_file(row["peak_line"])
    return middle(made_name(row["peak_op"], "", place, is_workspace=False), room)


def _categories(spreads: list[Any]) -> Table:
    table = _figures_table("Lowest", "Mean", "Highest")
    for heading in ("Category", "Most in"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for each in spreads:
        sizes = (each.lowest_bytes, each.mean_bytes, each.highest_bytes)
        style = category_style(each.name)
        table.add_row(*map(format_bytes, sizes), name(each.name, style=style), name(each.highest_in))
    return table


def _differences(frame: pd.DataFrame, rows: int) -> Table:
    table = _figures_table("Difference", "Highest")
    shown = frame.head(rows)
    for heading, texts in (("Where", shown["where"]), ("Category", shown["category"])):
        longest = min(max(map(len, texts)), _NAME_WIDTH)
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=longest)
    table.add_column("What", no_wrap=True, overflow="ellipsis")
    for row in shown.itertuples():
        what = " ".join(
            part for part in (row.module, told_what(row.category, row.what), place_in_file(row.line)) if part
        )
        table.add_row(
            format_bytes(row.spread_bytes),
            format_bytes(row.highest_bytes),
            name(row.where),
            name(row.category, style=category_style(row.category)),
            head(what, 60),
        )
    return table


def _more(count: int, one: str, several: str) -> list[RenderableType]:
    return [Text(f"{count:,} more {one if count == 1 else several}", style="dim")] if count > 0 else []
