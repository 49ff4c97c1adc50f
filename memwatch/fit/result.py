"""Define the result of `fit()`, which can undo the change that is active, and show the tried ways as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import pandas as pd
from rich.table import Table
from rich.text import Text

from memwatch.report.console import clip, to_text
from memwatch.sizes import format_bytes
from memwatch.words import fit as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from memwatch.fit.search import Search
    from memwatch.fit.trial import Measurement
    from memwatch.fit.way import Applied
    from memwatch.planner.plan import Plan

_GROWTH: Final = "growth_bytes"
"""Key in the `attrs` of the table: bytes that each step of the unchanged program left alive."""
_BITWISE: Final = {True: "yes", False: "no", None: "unknown"}


class Fit:
    """The way that keeps a training step within a limit. It is active until `undo`.

    Attributes:
        limit_bytes: the limit.
        peak_bytes: the peak of the chosen way: all bytes that were alive on the device at one instant.
        device: the device.
        ways: each way that was tried: `way`, `peak_bytes` (-1 if it failed), `step_time_ns` (-1 if it was not timed),
            `extra_ratio` (of the program's own time), `changes`, `bitwise` ("yes", "no", "unknown"), `under_limit`,
            `kept`, `failure`. `attrs["growth_bytes"]` has the bytes that each step of the program left alive.
        code: lines of Python that do the same in the program; empty if the program fits already.
        plan: the plan that the lines apply; None for lines without a plan.
        notes: state that could not be restored or compared, and ways that could not be tried.
    """

    def __init__(
        self,
        limit_bytes: int,
        device: str,
        ways: pd.DataFrame,
        *,
        code: str = "",
        notes: Sequence[str] = (),
        plan: Plan | None = None,
        applied: Applied | None = None,
    ) -> None:
        self.limit_bytes, self.device, self.ways, self.code, self.notes = (
            limit_bytes,
            device,
            ways,
            code,
            list(notes),
        )
        self.plan = plan
        self._applied = applied
        kept = ways.loc[ways["kept"], "peak_bytes"]
        self.peak_bytes = int(kept.iloc[0]) if len(kept) else -1

    def undo(self) -> None:
        """Take back the changes of fit()."""
        if self._applied is not None:
            self._applied.undo()

    def summary(self, *, width: int | None = None, color: bool | None = None) -> str:
        """Return the table of the ways, and the lines that keep the best of them without memwatch."""
        return ways_text(self.ways, self.limit_bytes, self.code, self.notes, width=width, color=color)

    def _repr_html_(self) -> str:
        """Show the ways in a notebook."""
        from memwatch.report.console import NOTEBOOK_WIDTH, fragment

        return fragment(self.summary(width=NOTEBOOK_WIDTH, color=True))

    def __str__(self) -> str:
        """Return the summary without colours."""
        return self.summary(color=False)


def ways_table(search: Search, kept: Measurement | None, limit_bytes: int) -> pd.DataFrame:
    """Return each way that was tried as a row."""
    plain = search.tried[0].cost
    rows = [
        {
            "way": each.way.name,
            "peak_bytes": -1 if each.peak_bytes is None else each.peak_bytes,
            "step_time_ns": -1 if each.step_time_ns is None else each.step_time_ns,
            "extra_ratio": each.cost / plain - 1 if plain and each.cost else math.nan,
            "changes": each.way.text,
            "bitwise": _BITWISE[search.is_bitwise(each)],
            "under_limit": each.fits(limit_bytes),
            "kept": each is kept,
            "failure": each.failure,
        }
        for each in search.tried
    ]
    table: pd.DataFrame = pd.DataFrame(rows)
    table.attrs[_GROWTH] = search.tried[0].growth_bytes
    return table


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
    parts: list[RenderableType] = [head, "", _table(ways)]
    if len(ways) > 1:
        parts += [Text(words.LEGEND, style="dim"), *([""] if after else [])]
    parts += [Text(clip(note)) for note in after]
    if growth_bytes := ways.attrs.get(_GROWTH):
        parts.insert(1, Text(words.GROWS.format(nbytes=format_bytes(growth_bytes)), style="bold"))
    if code:
        parts += ["", Text("To keep this way, write before the training loop:", style="bold"), ""]
    # add the code without wrapping its lines, so that it can be pasted
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
    return [words.FAILED.format(ways=", ".join(names), failure=failure) for failure, names in failed]


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
