"""The curve of the steps where every step was recorded: the stretches of the live curve between the marks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.iterations import MARK
from memwatch.analysis.facts.step_curve import FIGURES, StepCurve

if TYPE_CHECKING:
    from memwatch.analysis.facts.live_curve import LiveCurve
    from memwatch.capture import Capture


def by_live_curve(capture: Capture, curve: LiveCurve) -> StepCurve:
    """Return the curve of the steps where every step was recorded, the last one ending with the block."""
    marks = np.array([name == MARK for name in capture.text(capture.tables["steps"]["name"])], dtype=bool)
    marked = np.flatnonzero(marks)
    steps = capture.tables["steps"]
    if len(marked) and steps["op"][marked[-1]] == capture.rows("ops"):  # nothing came after the last mark
        bounds_ns = steps["time_ns"][marked]
    else:
        end_ns = max(int(capture.meta.get("end_ns", 0)), int(curve.time_ns[-1]))
        bounds_ns = np.append(steps["time_ns"][marked], end_ns)
    bounds_ns = np.append(int(capture.meta.get("start_ns", 0)), bounds_ns)
    figures: dict[str, list[int]] = {name: [] for name in FIGURES}
    for start_ns, end_ns in itertools.pairwise(bounds_ns.tolist()):
        first, after = events_between(curve, start_ns, end_ns)
        live = curve.live_bytes[first:after]
        for name, value in zip(FIGURES, (live.max(), live.min(), live[-1]), strict=True):
            figures[name].append(int(value))
    columns = {name: np.array(values, dtype=np.int64) for name, values in figures.items()}
    recorded = np.ones(len(bounds_ns) - 1, dtype=bool)
    return StepCurve(bounds_ns[:-1], bounds_ns[1:], **columns, recorded=recorded)


def events_between(curve: LiveCurve, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the event before a stretch of time, and the one after its last."""
    first = max(int(np.searchsorted(curve.time_ns, start_ns, side="right")) - 1, 0)
    return first, max(int(np.searchsorted(curve.time_ns, end_ns, side="right")), first + 1)
