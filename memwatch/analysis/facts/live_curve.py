"""The live curve: the bytes that are live after every allocation and every free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, Allocations
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


@dataclass(frozen=True)
class LiveCurve:
    """The live curve as columns, one row per event; row 0 is the entry of the block."""

    time_ns: IntArray
    allocation: IntArray  # what was allocated or freed, -1 for row 0
    delta_bytes: IntArray
    live_bytes: IntArray
    baseline_bytes: int
    peak_event: int
    peak_increase_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most live bytes at one instant."""
        return int(self.live_bytes[self.peak_event])


def trace_live_curve(capture: Capture, allocations: Allocations) -> tuple[Allocations, LiveCurve]:
    """Return the allocations with the events of their birth and death, and the live curve of these events."""
    start_ns = int(capture.meta.get("start_ns", 0))
    counted = np.flatnonzero(allocations.counted)
    entry = (allocations.origin[counted] == BASELINE) & (allocations.birth_ns[counted] <= start_ns)
    baseline_bytes = int(allocations.nbytes[counted][entry].sum())
    born, died = counted[~entry], counted[allocations.death_ns[counted] != NONE]
    allocation = np.concatenate([born, died])
    time_ns = np.concatenate([allocations.birth_ns[born], allocations.death_ns[died]])
    delta = np.concatenate([allocations.nbytes[born], -allocations.nbytes[died]])
    known = np.concatenate([allocations.birth_order[born], allocations.death_order[died]])
    order = np.lexsort((time_ns, _position(known, time_ns, delta < 0)))
    allocation, time_ns, delta = allocation[order], time_ns[order], delta[order]
    live = baseline_bytes + np.cumsum(delta)
    positions = np.arange(1, len(allocation) + 1)
    birth_event, death_event = allocations.birth_event.copy(), allocations.death_event.copy()
    birth_event[allocation[delta > 0]] = positions[delta > 0]
    death_event[allocation[delta < 0]] = positions[delta < 0]
    at_entry = np.zeros(len(allocations.nbytes), dtype=bool)
    at_entry[counted[entry]] = True
    increase = (
        np.cumsum(np.where(at_entry[allocation], 0, delta))
        if len(allocation)
        else np.zeros(1, dtype=np.int64)
    )
    live = np.concatenate([[baseline_bytes], live])
    curve = LiveCurve(
        np.concatenate([[start_ns], time_ns]),
        np.concatenate([[NONE], allocation]),
        np.concatenate([[0], delta]),
        live,
        baseline_bytes,
        int(np.argmax(live)),
        max(0, int(increase.max())),
    )
    return replace(allocations, birth_event=birth_event, death_event=death_event), curve


def _position(order: IntArray, time_ns: IntArray, is_death: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return sort keys that keep the allocator's own order; events that it did not report come between, by time.

    Args:
        order: positions among the allocator's events, -1 for none.
        time_ns: times of the events.
        is_death: whether each is a death. A block whose free was not heard ends with the event that allocates its
            address again, just before it.
    """
    reported = order != NONE
    sequence = np.argsort(order[reported])
    times, positions = time_ns[reported][sequence], order[reported][sequence]
    if not len(times):
        return np.zeros(len(order))
    before = np.searchsorted(times, time_ns, side="right") - 1
    between = np.where(before >= 0, positions[np.maximum(before, 0)] + 0.5, -0.5)
    return np.where(reported, order - 0.25 * is_death, between)
