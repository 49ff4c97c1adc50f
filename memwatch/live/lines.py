"""The view as one line of plain text, for where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.report.meta import format_duration
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.live.watch import View


def line_of(view: View) -> str:
    """Return the state, what is alive now, the peak so far, and the largest categories."""
    figures = view.figures
    if figures is None:
        return view.state.value
    parts = [
        f"{format_duration(figures.now_ns)}",
        f"live {format_bytes(figures.live_bytes)}",
        f"peak {format_bytes(figures.peak_bytes)} on {figures.device}",
        *(f"{name} {format_bytes(nbytes)}" for name, nbytes in figures.categories[:3]),
        f"iteration {figures.iterations[-1].number}" if figures.iterations else "",
        view.state.value,
    ]
    return ", ".join(filter(None, parts))
