"""Counts and totals of a reading, as a dict for programs and as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from memwatch.report.console import bar, clip, line_width, tail, to_text
from memwatch.report.facts import (
    BLANK,
    bytes_by,
    describe_meta,
    evidence_bytes,
    evidence_text,
    is_recorded,
    peak_instant,
    saved_for_backward,
)
from memwatch.sizes import format_bytes
from memwatch.words.places import short_place
from memwatch.words.processes import counted
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from rich.console import RenderableType

    from memwatch.analysis.reading import DeviceReading


_BIN_ENDS: Final = 4 ** np.arange(1, 32)


def stats(reading: DeviceReading, *, top: int = 5) -> dict[str, Any]:
    """Return counts and totals of a reading.

    Args:
        reading: a profile.
        top: how many sites and ops to list.

    Returns:
        A dict of plain JSON values; sizes are in bytes. A bin of the histogram is `[from_bytes, to_bytes,
        count, nbytes]`, for sizes with `from_bytes <= size < to_bytes`; bins grow by a factor of four. Figures that
        an imported memory snapshot does not have are None.
    """
    at, saved = peak_instant(reading), saved_for_backward(reading)
    is_saved_known = is_recorded(reading, "saved tensors")
    made = _Made(reading)
    categories = bytes_by(reading.at_peak, "category")["nbytes"]
    return {
        "device": reading.device,
        "devices": {device: _sizes(reading.on(device)) for device in reading.devices},
        **_sizes(reading),
        "peak_op": at.op,
        "peak_op_name": at.op_name,
        "peak_line": at.line,
        "ops": len(reading.part("ops", ())) if is_recorded(reading, "ops") else None,
        "allocations": len(made.nbytes),
        "frees": _falls(reading.part("timeline", ["live_bytes"])["live_bytes"].to_numpy()),
        "allocated_bytes": int(made.nbytes.sum()),
        "workspaces": made.count("origin", "workspace") if is_recorded(reading, "ops") else None,
        "live_at_peak": len(reading.at_peak),
        "saved_for_backward_bytes": saved.nbytes if is_saved_known else None,
        "only_for_backward_ratio": saved.share_ratio if is_saved_known else None,
        "category_bytes": {str(category): int(nbytes) for category, nbytes in categories.items()},
        "holder_evidence_bytes": evidence_bytes(reading),
        "histogram": _histogram(made.nbytes),
        "top_lines": made.top("line", top),
        "top_ops": made.top("op_name", top) if is_recorded(reading, "ops") else [],
        "findings": len(reading.findings) if is_recorded(reading, "uses") else None,
        "meta": dict(describe_meta(reading.meta)),
    }


def _sizes(reading: DeviceReading) -> dict[str, int | None]:
    return {
        "peak_bytes": reading.peak_bytes,
        "baseline_bytes": reading.baseline_bytes,
        "peak_increase_bytes": reading.peak_increase_bytes,
        **_reserved(reading),
    }


def _reserved(reading: DeviceReading) -> dict[str, int | None]:
    held = reading.reserved
    if held is None:
        return {}
    return {
        "peak_reserved_bytes": held.at_peak_bytes,
        "most_reserved_bytes": held.most_bytes,
        "peak_largest_free_bytes": held.largest_free_bytes,
    }


class _Made:
    """The allocations of the block. Columns are loaded one at a time, because a long run has millions of rows."""

    def __init__(self, reading: DeviceReading) -> None:
        lives = reading.part("storages", ("counted", "birth_event"))
        self._reading = reading
        self._rows = (lives["counted"] & (lives["birth_event"] >= 0)).to_numpy()

    @property
    def nbytes(self) -> NDArray[np.int64]:
        """The bytes of each allocation. They are not kept, to save memory while memwatch searches for findings."""
        nbytes: NDArray[np.int64] = self._reading.part("storages", ("nbytes",))["nbytes"].to_numpy()[
            self._rows
        ]
        return nbytes

    def _column(self, name: str) -> pd.Categorical:
        texts: pd.Categorical = pd.Categorical(self._reading.part("storages", (name,), coded=True)[name])
        return pd.Categorical.from_codes(texts.codes[self._rows], dtype=texts.dtype)

    def count(self, column: str, text: str) -> int:
        """Count the allocations that have a text in a column."""
        return int((self._column(column) == text).sum())

    def top(self, column: str, most: int) -> list[dict[str, Any]]:
        """Return the values of a column with the most allocated bytes.

        Equal values keep the order of their first allocation.
        """
        values = self._column(column)
        codes, texts = values.codes, values.categories
        sums, largest, first = (np.zeros(len(texts), dtype=np.int64) for _ in range(3))
        nbytes = self.nbytes
        np.add.at(sums, codes, nbytes)
        np.maximum.at(largest, codes, nbytes)
        del nbytes
        first[codes[::-1]] = np.arange(len(codes), dtype=np.int32)[::-1]
        counts = np.bincount(codes, minlength=len(texts))
        order = np.lexsort((first, -sums))
        return [
            {
                "name": str(texts[code]) or BLANK[column],
                "nbytes": int(sums[code]),
                "count": int(counts[code]),
                "largest_bytes": int(largest[code]),
            }
            for code in order[counts[order] > 0][:most].tolist()
        ]


def _falls(live_bytes: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    return int((live_bytes[1:] < live_bytes[:-1]).sum())


def _histogram(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[int]]:
    if not len(sizes):
        return []
    # with a bin per factor of four the histogram fits on a screen for any program
    bins = np.searchsorted(_BIN_ENDS, sizes, side="right").astype(np.int8)
    return [
        [
            4 ** int(each) if each else 0,
            4 ** int(each + 1),
            int((bins == each).sum()),
            int(sizes[bins == each].sum()),
        ]
        for each in range(int(bins.min()), int(bins.max()) + 1)
    ]


def format_stats(figures: Mapping[str, Any], *, width: int | None = None, color: bool | None = None) -> str:
    """Return the figures of `stats` as text.

    Args:
        figures: the dict that `stats` returned.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.

    Returns:
        The text, ending with a newline.
    """
    totals = Table(box=None, show_header=False, pad_edge=False)
    for label, text in _totals(figures):
        if not text:
            continue  # an imported memory snapshot does not know it
        totals.add_row(Text(label, style="dim"), Text(clip(text), overflow="fold"))
    if not figures["allocations"]:
        return to_text(totals, "", "No allocation was recorded.", width=width, color=color)
    parts: list[RenderableType] = [
        totals,
        "",
        Text("Sizes of allocations", style="bold"),
        _draw_histogram(figures["histogram"]),
    ]
    for kind, key in (("Line", "top_lines"), ("Op", "top_ops")):
        if figures[key] or figures["ops"] is not None:
            told = short_op if key == "top_ops" else short_place
            top = _draw_top(figures[key], kind, told, line_width(width))
            parts += ["", Text(f"{kind}s that allocated most", style="bold"), top]
    return to_text(*parts, width=width, color=color)


def _totals(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    place = short_place(figures["peak_line"])
    where = (
        f"at op {figures['peak_op']}, {short_op(figures['peak_op_name'])}{f' at {place}' if place else ''}"
    )
    peak = f"{format_bytes(figures['peak_bytes'])} {where if figures['peak_op'] >= 0 else ''}"
    made = f"{figures['allocations']:,} of {format_bytes(figures['allocated_bytes'])}"
    return [
        ("peak", peak.rstrip()),
        ("baseline", format_bytes(figures["baseline_bytes"])),
        ("peak increase", format_bytes(figures["peak_increase_bytes"])),
        ("only for backward", _share(figures["only_for_backward_ratio"])),
        ("how holders are known", evidence_text(figures["holder_evidence_bytes"])),
        ("ops", _known(figures["ops"])),
        ("allocations", made),
        ("workspaces", _known(figures["workspaces"], "{:,} of these")),
        ("frees", f"{figures['frees']:,}"),
        ("live at the peak", counted(figures["live_at_peak"], "storage")),
        ("findings", _known(figures["findings"])),
        ("device", figures["device"]),
        *_other_devices(figures),
        *figures["meta"].items(),
    ]


def _other_devices(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    others = {name: sizes for name, sizes in figures["devices"].items() if name != figures["device"]}
    return [(f"peak on {name}", format_bytes(sizes["peak_bytes"])) for name, sizes in others.items()]


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} % of the peak"


def _known(figure: int | None, template: str = "{:,}") -> str:
    """Return a figure as text, empty where it is not recorded."""
    return "" if figure is None else template.format(figure)


def _draw_histogram(histogram: list[list[int]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("From", "Below", "Count", "Bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((count for _, _, count, _ in histogram), default=1)
    for low, high, count, nbytes in histogram:
        table.add_row(
            format_bytes(low), format_bytes(high), f"{count:,}", format_bytes(nbytes), bar(count / most, 30)
        )
    return table


def _draw_top(rows: list[dict[str, Any]], heading: str, label_of: Callable[[str], str], line: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for each in ("Bytes", "Count", "Largest"):
        table.add_column(each, justify="right", no_wrap=True)
    table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(
            format_bytes(row["nbytes"]),
            f"{row['count']:,}",
            format_bytes(row["largest_bytes"]),
            tail(label_of(row["name"]), line - 32),
        )
    return table
