"""The curve of the steps: every step's peak, floor and times, as the recorder measured them.

The recorder measures them if a schedule chooses which steps are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

FIGURES: Final = ("peak_bytes", "floor_bytes", "end_live_bytes")
"""The columns of the curve that are bytes."""


@dataclass(frozen=True)
class StepCurve:
    """The steps of one device as columns, in order."""

    start_ns: IntArray
    end_ns: IntArray
    peak_bytes: IntArray
    floor_bytes: IntArray
    end_live_bytes: IntArray
    recorded: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, time_ns: IntArray) -> IntArray:
        """Return the step at each time; -1 before the first step, and after the last known step."""
        step = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        known = step >= 0
        known[known] = np.asarray(time_ns)[known] <= self.end_ns[step[known]]
        return np.where(known, step, NONE)

    def is_unrecorded(self, time_ns: IntArray) -> NDArray[np.bool_]:
        """Return which times lie in a step that is not recorded."""
        step = self.at(time_ns)
        unrecorded: NDArray[np.bool_] = (step != NONE) & ~np.append(self.recorded, True)[step]
        return unrecorded

    def spans_unrecorded(self, from_ns: IntArray, until_ns: IntArray) -> NDArray[np.bool_]:
        """Return which stretches of time have a part in a step that is not recorded."""
        start_ns, end_ns = self.start_ns[~self.recorded], self.end_ns[~self.recorded]
        begun = np.searchsorted(start_ns, until_ns, side="left")
        spans: NDArray[np.bool_] = begun > np.searchsorted(end_ns, from_ns, side="right")
        return spans


def step_curve(capture: Capture, device: str = "") -> StepCurve:
    """Return the curve of the steps of a device. The steps have the same times on all devices."""
    rows = capture.tables["step_curve"]
    steps, first = np.unique(rows["step"], return_index=True)
    here = np.array([name == device for name in capture.text(np.asarray(rows["device"]))], dtype=bool)
    place = np.searchsorted(steps, rows["step"][here])
    # a device that was first used in a later step has 0 bytes in the steps before
    figures = {name: np.zeros(len(steps), dtype=np.int64) for name in FIGURES}
    for name, values in figures.items():
        values[place] = rows[name][here]
    return StepCurve(
        rows["start_ns"][first], rows["end_ns"][first], **figures, recorded=rows["recorded"][first] == 1
    )
