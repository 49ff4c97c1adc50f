"""Figures of a profile drawn by matplotlib, which is optional: what `prof.plot` gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.errors import MemwatchError
from memwatch.kinds.roles import CATEGORY_OF
from memwatch.report.facts import bytes_by, peak_instant
from memwatch.report.page.events import live_by_category, peak_keeping_events
from memwatch.sizes import format_bytes, format_bytes_as
from memwatch.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from memwatch.analysis.reading import DeviceReading

_POINTS: Final = 2000
"""More than the pixels of a figure. A guess."""
_MOST_TICKS: Final = 6
"""Labels of an axis with sizes. A guess."""


class Plot:
    """The figures of one reading; each method draws into `ax`, or into new axes, and returns the axes.

    matplotlib is needed: `pip install matplotlib`.
    """

    def __init__(self, reading: DeviceReading) -> None:
        self._reading = reading

    def timeline(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw live bytes over time by category; the peak is marked and exact.

        Args:
            ax: the axes to draw into; new ones by default.
            options: passed to `Axes.stackplot`.

        Raises:
            MemwatchError: matplotlib is not installed.
        """
        axes = _axes(ax)
        line = self._reading.part("timeline", ["time_ns", "live_bytes"])
        time_ns, live_bytes = line["time_ns"].to_numpy(), line["live_bytes"].to_numpy()
        events = peak_keeping_events(time_ns, live_bytes, _POINTS)
        by_category = live_by_category(self._reading, events)
        shown = {name: nbytes for name, nbytes in by_category.items() if nbytes.any()}
        colors = [_color(name) for name in shown]
        seconds = time_ns[events] / 1e9
        if shown:  # drawn as steps, because bytes change at an instant
            bands = {"labels": list(shown), "colors": colors, "step": "post", "linewidth": 0, **options}
            axes.stackplot(seconds, np.array(list(shown.values())), **bands)
        at = peak_instant(self._reading)
        mark: dict[str, Any] = {"marker": "v", "color": "black", "linestyle": "none", "label": "peak"}
        axes.plot(at.time_ns / 1e9, self._reading.peak_bytes, **mark)
        axes.legend(loc="upper left", fontsize="small")
        axes.set(
            xlabel="seconds after the start",
            ylabel="live bytes",
            title=self._title("Live bytes over the run, peak {peak} ({device})"),
            ylim=(0, None),
        )
        return _with_sizes(axes, "y")

    def peak(self, by: str = "category", ax: Axes | None = None, *, rows: int = 12, **options: Any) -> Axes:
        """Draw the parts of the peak as bars, largest first.

        Args:
            by: a column of `at_peak`: `category`, `module`, `line`, `holder_kind`, `phase`, ...
            ax: the axes to draw into; new ones by default.
            rows: the largest number of bars; the last bar shows the rest.
            options: passed to `Axes.barh`.

        Raises:
            MemwatchError: matplotlib is missing, or the column is unknown.
        """
        peak = self._reading.at_peak
        if by not in peak:
            raise MemwatchError(f"{by!r} is not a column of at_peak; choose from {', '.join(peak.columns)}")
        axes = _axes(ax)
        sums = bytes_by(peak, by)["nbytes"]
        bars = {visible(str(name)): int(nbytes) for name, nbytes in sums.head(rows).items()}
        if len(sums) > rows:
            bars[f"{len(sums) - rows:,} more"] = int(sums.iloc[rows:].sum())
        colors = [_color(name) for name in bars]
        axes.barh(list(bars), list(bars.values()), **{"color": colors, **options})
        axes.invert_yaxis()
        axes.set(
            xlabel="bytes at the peak", title=self._title("What the peak of {peak} is made of ({device})")
        )
        return _with_sizes(axes, "x")

    def steps(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the peak of each iteration, and the live bytes at its end.

        Args:
            ax: the axes to draw into; new ones by default.
            options: passed to `Axes.plot`.

        Raises:
            MemwatchError: matplotlib is not installed.
        """
        axes, steps = _axes(ax), self._reading.steps
        axes.plot(steps.index, steps["peak_bytes"], **{"label": "peak", "color": "tab:red", **options})
        axes.plot(
            steps.index, steps["end_live_bytes"], **{"label": "at its end", "color": "tab:blue", **options}
        )
        axes.legend(fontsize="small")
        axes.set(
            xlabel="step",
            ylabel="live bytes",
            title=self._title("The peak of each step, at most {peak} ({device})"),
            ylim=(0, None),
        )
        return _with_sizes(axes, "y")

    def _title(self, template: str) -> str:
        peak = format_bytes(self._reading.peak_bytes)
        return template.format(peak=peak, device=visible(self._reading.device))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MemwatchError(f"prof.plot needs matplotlib ({error}): pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]


def _color(category: str) -> str:
    """Return the colour that a category has on the page, and gray for other groups."""
    row = CATEGORY_OF.get(category)
    return "tab:gray" if row is None else row.color


def _with_sizes(axes: Axes, which: str) -> Axes:
    """Label the ticks of an axis with sizes, at whole numbers of a binary unit."""
    from matplotlib.ticker import MultipleLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    most_bytes = max(axis.get_view_interval())
    axis.set_major_formatter(lambda nbytes, _: format_bytes_as(max(int(nbytes), 0), most_bytes))
    power = math.ceil(math.log2(max(most_bytes, 1) / _MOST_TICKS))
    axis.set_major_locator(MultipleLocator(2 ** max(0, power)))
    return axes
