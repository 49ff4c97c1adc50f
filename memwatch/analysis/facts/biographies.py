"""Biographies: the life of every allocation in four phases.

lag: allocated, not yet used. use: from the first to the last use. drag: from the last use to the free.
void: never used at all. The words are those of heap profiling (Röjemo & Runciman, ICFP 1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.live_curve import LiveCurve
    from memwatch.analysis.facts.uses import UseBounds
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

PHASE_NAMES = ("lag", "use", "drag", "void")
LAG, USE, DRAG, VOID = range(len(PHASE_NAMES))


@dataclass(frozen=True)
class Biographies:
    """Per allocation: when it was first and last used, as events of the live curve, and how long each phase was."""

    first_event: IntArray  # the first event at or after the start of the first use
    last_event: IntArray  # the first event after the end of the last use
    used: np.ndarray[tuple[int], np.dtype[np.bool_]]
    lag_ns: IntArray
    use_ns: IntArray
    drag_ns: IntArray
    void_ns: IntArray
    known: bool = True  # False where uses were not recorded: no phase is told then

    def phase_at(self, event: int) -> IntArray:
        """Return the phase of every allocation at an event: an index into PHASE_NAMES, -1 where it is not known."""
        if not self.known:
            return np.full(len(self.used), NONE, dtype=np.int64)
        phase = np.where(event < self.first_event, LAG, np.where(event < self.last_event, USE, DRAG))
        return np.where(self.used, phase, VOID)


def write_biographies(
    capture: Capture, allocations: Allocations, curve: LiveCurve, bounds: UseBounds
) -> Biographies:
    """Return the biography of every allocation.

    Args:
        capture: what was recorded.
        allocations: every piece of memory.
        curve: the live curve.
        bounds: first and last op that used each allocation, -1 if none.
    """
    ops = capture.tables["ops"]
    used = bounds.first_op != NONE
    if not len(ops["op"]):
        used = np.zeros(len(used), dtype=bool)
    start, end = np.zeros_like(bounds.first_op), np.zeros_like(bounds.last_op)
    start[used], end[used] = ops["start_ns"][bounds.first_op[used]], ops["end_ns"][bounds.last_op[used]]
    birth = allocations.birth_ns
    death = np.where(allocations.death_ns == NONE, int(capture.meta.get("end_ns", 0)), allocations.death_ns)
    death = np.maximum(death, birth)
    start, end = np.clip(start, birth, death), np.clip(end, birth, death)
    return Biographies(
        np.searchsorted(curve.time_ns, start, side="left"),
        np.searchsorted(curve.time_ns, end, side="right"),
        used,
        np.where(used, start - birth, 0),
        np.where(used, end - start, 0),
        np.where(used, death - end, 0),
        np.where(used | capture.lacks("uses"), 0, death - birth),
        known=not capture.lacks("uses"),
    )
