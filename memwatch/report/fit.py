"""The ways into a limit as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from memwatch.report.console import clip, to_text
from memwatch.sizes import format_bytes
from memwatch.words import fit as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import RenderableType


def ways_text(
    ways: pd.DataFrame,
    limit_bytes: int,
    code: str = "",
    notes: Sequence[str] = (),
    *,
    width: int | None = None,
    color: bool | None = None,
) -> str:
    """Return the table of tried ways, the chosen way, and the lines that apply it.

    Args:
        ways: one row for each way, in the columns of `Fit.ways`.
        limit_bytes: the limit.
        code: lines of Python for the chosen way.
        notes: sentences that follow.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.

    Returns:
        The text, ending with a newline.
    """
    head = Text(_headline(ways, limit_bytes), style="bold")
    after = [*_failures(ways), *notes]
    parts: list[RenderableType] = [head, "", _table(ways), *(Text(clip(note)) for note in after)]
    if code:
        parts += ["", Text("Without memwatch.fit, write before the training loop:", style="bold"), ""]
    # lines of code are not broken, so that they can be pasted
    return to_text(*parts, width=width, color=color) + code


def _headline(ways: pd.DataFrame, limit_bytes: int) -> str:
    limit, kept = format_bytes(limit_bytes), ways[ways["kept"]]
    if kept.empty or kept["peak_bytes"].iloc[0] < 0:
        return words.LIMIT.format(limit=limit)
    way, peak = kept["way"].iloc[0], format_bytes(int(kept["peak_bytes"].iloc[0]))
    return words.FITS.format(limit=limit, way=way, peak=peak)


def _failures(ways: pd.DataFrame) -> list[str]:
    """Return a sentence for each reason why ways could not be measured."""
    failed = ways[ways["failure"] != ""].groupby("failure", sort=False)["way"]
    return [words.FAILED.format(ways="; ".join(names), failure=failure) for failure, names in failed]


def _table(ways: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for heading in ("Peak", "Step", "Extra"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Bitwise", no_wrap=True)
    table.add_column("Way", overflow="fold")
    table.add_column("What it changes", overflow="fold")
    for row in ways.to_dict("records"):
        peak = "-" if row["peak_bytes"] < 0 else format_bytes(row["peak_bytes"])
        took = "-" if row["step_time_ns"] < 0 else f"{row['step_time_ns'] / 1e6:.1f} ms"
        extra = "-" if row["extra_ratio"] != row["extra_ratio"] else f"{100 * row['extra_ratio']:+.1f} %"
        style = "bold green" if row["kept"] else "green" if row["under_limit"] else "red"
        table.add_row(
            ">" if row["kept"] else "", Text(peak, style=style), took, extra, Text(row["bitwise"]),
            Text(row["way"]), Text(words.NOT_MEASURED if row["failure"] else row["changes"], style="dim"),
        )  # fmt: skip
    return table
