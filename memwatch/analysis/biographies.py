"""Biographies: the life of every storage in four phases.

lag: allocated, not yet used. use: from the first to the last use. drag: from the last use to the free.
void: never used at all. The words are those of heap profiling (Röjemo & Runciman, ICFP 1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.lives import Curve, Lives
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

PHASE_NAMES = ("lag", "use", "drag", "void")
LAG, USE, DRAG, VOID = range(len(PHASE_NAMES))


@dataclass(frozen=True)
class Biographies:
    """Per life: when it was first and last used, as events of the live curve, and the length of its phases."""

    first_event: IntArray  # the first event at or after the start of the first use
    last_event: IntArray  # the first event after the end of the last use
    used: np.ndarray[tuple[int], np.dtype[np.bool_]]
    lag_ns: IntArray
    use_ns: IntArray
    drag_ns: IntArray
    void_ns: IntArray

    def phase_at(self, event: int) -> IntArray:
        """Give the phase of every life at an event: an index into PHASE_NAMES."""
        phase = np.where(event < self.first_event, LAG, np.where(event < self.last_event, USE, DRAG))
        return np.where(self.used, phase, VOID)


def tell(capture: Capture, lives: Lives, curve: Curve, bounds: tuple[IntArray, IntArray]) -> Biographies:
    """Tell the biography of every life.

    Args:
        capture: what was recorded.
        lives: every piece of memory.
        curve: the live curve.
        bounds: first and last op that used each life, -1 if none.
    """
    ops = capture.tables["ops"]
    first, last = bounds
    used = first != NONE
    if not len(ops["op"]):
        used = np.zeros(len(first), dtype=bool)
    start = (
        np.where(used, ops["start_ns"][np.where(used, first, 0)], 0) if used.any() else np.zeros_like(first)
    )
    end = np.where(used, ops["end_ns"][np.where(used, last, 0)], 0) if used.any() else np.zeros_like(first)
    death = np.where(lives.death_ns == NONE, int(capture.meta.get("end_ns", 0)), lives.death_ns)
    death = np.maximum(death, lives.birth_ns)
    start, end = np.clip(start, lives.birth_ns, death), np.clip(end, lives.birth_ns, death)
    return Biographies(
        np.searchsorted(curve.time_ns, start, side="left"),
        np.searchsorted(curve.time_ns, end, side="right"),
        used,
        np.where(used, start - lives.birth_ns, 0),
        np.where(used, end - start, 0),
        np.where(used, death - end, 0),
        np.where(used, 0, death - lives.birth_ns),
    )
