"""The result of a tuning, and its text for a terminal: the best setting, and the lower bound for all settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pandas as pd
from rich.table import Table
from rich.text import Text

from memwatch.report.console import clip, name, to_text
from memwatch.sizes import format_bytes
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from memwatch.devices.cuda_allocator import Outcome
    from memwatch.reading import Reading
    from memwatch.report.records.schema import TuneRecord

VARIABLE: Final = "PYTORCH_ALLOC_CONF"
"""torch 2.11 to 2.15 read it; `PYTORCH_CUDA_ALLOC_CONF`, its older name, comes first where both are set."""
_DEFAULT: Final = "the default"


@dataclass(frozen=True)
class EarlierLine:
    """Long-lived tensors of one line that split segments: fewer bytes are reserved if they are made first.

    Attributes:
        line: the line of the program that makes them.
        count: number of them that are alive when most bytes are reserved.
        nbytes: their bytes.
        holder: the holder of the largest; "" if unknown.
        most_reserved_bytes: the most reserved bytes with the default settings if the program makes them before all
            others.
    """

    line: str
    count: int
    nbytes: int
    holder: str
    most_reserved_bytes: int


@dataclass(frozen=True)
class Tuning:
    """The bytes that an allocator reserves for a program under each of several settings.

    Attributes:
        reading: the program.
        allocator: the allocator that ran: torch's own, or memwatch's model.
        model_because: why torch's own allocator did not run; "" if it did.
        device_bytes: the memory of the device, None if it was not given.
        lower_bound_bytes: the most bytes of tensors that are alive at once. No setting can reserve less.
        default: the default settings.
        outcomes: the result of each setting, the best first.
        rejected: why a setting was not tried, by setting.
        earlier: lines whose tensors split segments.
    """

    reading: Reading
    allocator: str
    model_because: str
    device_bytes: int | None
    lower_bound_bytes: int
    default: Outcome
    outcomes: tuple[Outcome, ...]
    rejected: Mapping[str, str]
    earlier: tuple[EarlierLine, ...]

    @property
    def best(self) -> Outcome:
        """The setting that reserves least among those that fit without retries; of equal ones, the simplest."""
        return self.outcomes[0]

    @property
    def environment(self) -> str:
        """The line that sets the best setting in a shell; empty if that is the default."""
        return f"{VARIABLE}={self.best.settings}" if self.best.settings else ""

    @property
    def table(self) -> pd.DataFrame:
        """One row per setting, the best first."""
        table: pd.DataFrame = pd.DataFrame(
            {
                "settings": [each.settings for each in self.outcomes],
                "most_reserved_bytes": [each.most_reserved_bytes for each in self.outcomes],
                "most_allocated_bytes": [each.most_allocated_bytes for each in self.outcomes],
                "retries": [each.retries for each in self.outcomes],
                "fits": [each.fits for each in self.outcomes],
            }
        )
        return table

    def __str__(self) -> str:
        return tune_text(self)


def tune_text(tuning: Tuning, *, rows: int = 10, width: int | None = None, color: bool | None = None) -> str:
    """Return a tuning as text.

    Args:
        tuning: the result.
        rows: settings to list; the default is always among them.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.
    """
    best, default = tuning.best, tuning.default
    shown = list(tuning.outcomes[:rows])
    if default not in shown:
        shown.append(default)
    table = Table(box=None, pad_edge=False)
    table.add_column("Reserved", justify="right", no_wrap=True)
    table.add_column("Retries", justify="right", no_wrap=True)
    if tuning.device_bytes is not None:
        table.add_column("Fits", no_wrap=True)
    table.add_column("Setting", overflow="fold")
    for outcome in shown:
        cells: list[str | Text] = [format_bytes(outcome.most_reserved_bytes), f"{outcome.retries:,}"]
        if tuning.device_bytes is not None:
            cells.append("yes" if outcome.fits else "no")
        table.add_row(*cells, name(outcome.settings or _DEFAULT, "bold" if outcome is best else ""))
    more = len(tuning.outcomes) - len(shown)
    parts: list[RenderableType] = [_head(tuning), "", table]
    if more > 0:
        parts.append(f"{more} more settings")
    parts += [
        "",
        f"No setting can reserve less than {format_bytes(tuning.lower_bound_bytes)}: the tensors' peak.",
    ]
    parts += [Text(clip(line)) for line in _remarks(tuning)]
    if tuning.environment:
        parts += ["", Text(f"export {tuning.environment}", style="bold", no_wrap=True, overflow="ignore")]
    return to_text(*parts, width=width, color=color)


def _head(tuning: Tuning) -> str:
    best, default = tuning.best, tuning.default
    device = "" if tuning.device_bytes is None else f" of {format_bytes(tuning.device_bytes)}"
    if not best.fits:
        return f"No setting fits the device{device}: the tensors' peak is {format_bytes(tuning.lower_bound_bytes)}"
    if best is default:
        reserved = format_bytes(default.most_reserved_bytes)
        return f"No setting is better than the default, which reserves {reserved} at most"
    now = _told(default)
    return f"{best.settings} reserves {format_bytes(best.most_reserved_bytes)} at most; the default {now}"


def _told(outcome: Outcome) -> str:
    if not outcome.fits:
        return "does not fit"
    retries = f" with {outcome.retries:,} retries" if outcome.retries else ""
    return f"{format_bytes(outcome.most_reserved_bytes)}{retries}"


def _remarks(tuning: Tuning) -> list[str]:
    lines = [f"These figures come from {tuning.allocator}."]
    if tuning.model_because:
        lines[0] = f"These figures come from {tuning.allocator}, because {tuning.model_because}."
    held = tuning.reading.reserved
    if held is not None:
        lines.append(
            f"The recorded run itself reserved {format_bytes(held.most_bytes)} at most, with its own settings."
        )
    lines += [_earlier(each) for each in tuning.earlier]
    if tuning.rejected:
        count = len(tuning.rejected)
        settings = "setting was" if count == 1 else "settings were"
        lines.append(f"{count} {settings} not tried: {next(iter(tuning.rejected.values()))}")
    return lines


def _earlier(each: EarlierLine) -> str:
    tensors = "tensor" if each.count == 1 else f"{each.count} tensors"
    holder = f", held by {each.holder}" if each.holder else ""
    return (
        f"Segments are split by the {tensors} of {short_place(each.line)} ({format_bytes(each.nbytes)}{holder}): made "
        f"before all others, the default reserves {format_bytes(each.most_reserved_bytes)} at most."
    )


def tune_record(tuning: Tuning) -> TuneRecord:
    """Return the settings, the best first, and the bound."""
    return {
        "device": tuning.reading.device,
        "allocator": tuning.allocator,
        "is_model": bool(tuning.model_because),
        "device_bytes": tuning.device_bytes,
        "lower_bound_bytes": tuning.lower_bound_bytes,
        "environment": tuning.environment,
        "settings": [
            {
                "settings": each.settings,
                "most_reserved_bytes": each.most_reserved_bytes,
                "most_allocated_bytes": each.most_allocated_bytes,
                "retries": each.retries,
                "fits": each.fits,
            }
            for each in tuning.outcomes
        ],
        "rejected": dict(tuning.rejected),
        "earlier": [
            {
                "line": each.line,
                "count": each.count,
                "nbytes": each.nbytes,
                "holder": each.holder,
                "most_reserved_bytes": each.most_reserved_bytes,
            }
            for each in tuning.earlier
        ],
    }
