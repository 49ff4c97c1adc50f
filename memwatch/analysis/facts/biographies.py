"""Biographies: the life of every allocation in four phases.

lag: allocated, not yet used. use: from the first to the last use. drag: from the last use to the free.
void: never used at all. The words are those of heap profiling (Röjemo & Runciman, ICFP 1996).

A kernel uses its workspace for as long as that lives. What no recorded op used is not void where nobody saw who might:
memory that no tensor names, and what another thread made, whose ops are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import WORKSPACE
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    used: NDArray[np.bool_]
    known: NDArray[np.bool_]  # False where nobody saw the uses: no phase is told then
    lag_ns: IntArray
    use_ns: IntArray
    drag_ns: IntArray
    void_ns: IntArray

    def phase_at(self, event: int, rows: IntArray) -> IntArray:
        """Return the phase of some allocations at an event: an index into PHASE_NAMES, -1 where it is not known."""
        in_use = np.where(event < self.last_event[rows], USE, DRAG)
        phase = np.where(event < self.first_event[rows], LAG, in_use)
        return np.where(self.known[rows], np.where(self.used[rows], phase, VOID), NONE)


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
    birth, in_kernel = allocations.birth_ns, allocations.origin == WORKSPACE
    death = np.where(allocations.death_ns == NONE, int(capture.meta.get("end_ns", 0)), allocations.death_ns)
    death = np.maximum(death, birth)
    start = np.where(in_kernel, birth, np.clip(start, birth, death))
    end = np.where(in_kernel, death, np.clip(end, birth, death))
    is_seen = used | ((allocations.storage != NONE) & (allocations.thread == NONE))
    known = (is_seen | in_kernel) & (not capture.lacks("uses"))
    used = used | in_kernel
    return Biographies(
        np.searchsorted(curve.time_ns, start, side="left"),
        np.searchsorted(curve.time_ns, end, side="right"),
        used,
        known,
        np.where(used & known, start - birth, 0),
        np.where(used & known, end - start, 0),
        np.where(used & known, death - end, 0),
        np.where(used | ~known, 0, death - birth),
    )
