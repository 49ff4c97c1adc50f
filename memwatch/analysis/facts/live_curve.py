"""The live curve: the bytes that are live after every allocation and every free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, Allocations
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_BEFORE_ALL: Final = -2  # sorts before every position and before NONE


@dataclass(frozen=True)
class LiveCurve:
    """The live curve as columns, one row per event; row 0 is the entry of the block."""

    time_ns: IntArray
    allocation: IntArray  # the row that was allocated or freed, -1 for row 0
    live_bytes: IntArray
    baseline_bytes: int
    peak_event: int
    # position of the birth at the peak among the allocator's events; -1 if the allocator did not report it
    peak_order: int
    peak_increase_bytes: int

    @property
    def delta_bytes(self) -> IntArray:
        """The bytes that each event adds to the live bytes, negative for a free; 0 for row 0."""
        delta = np.zeros(len(self.live_bytes), dtype=np.int64)
        np.subtract(self.live_bytes[1:], self.live_bytes[:-1], out=delta[1:])
        return delta

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
    dies = counted[allocations.death_ns[counted] != NONE].astype(np.int32)
    born = counted[~entry].astype(np.int32)
    allocation = np.concatenate([born, dies])
    is_death = np.arange(len(allocation)) >= len(born)
    time_ns = np.concatenate([allocations.birth_ns[born], allocations.death_ns[dies]])
    known = np.concatenate([allocations.birth_order[born], allocations.death_order[dies]])
    order = np.lexsort((time_ns, _position(known, time_ns, is_death))).astype(np.int32)
    del known, born, dies
    allocation, time_ns, is_death = allocation[order], time_ns[order], is_death[order]
    del order
    delta = allocations.nbytes[allocation]
    np.negative(delta, out=delta, where=is_death)
    live = np.empty(len(delta) + 1, dtype=np.int64)
    live[0] = baseline_bytes
    np.cumsum(delta, out=live[1:])
    live[1:] += baseline_bytes
    positions = np.arange(1, len(allocation) + 1, dtype=np.int32)
    birth_event, death_event = allocations.birth_event.copy(), allocations.death_event.copy()
    birth_event[allocation[~is_death]] = positions[~is_death]
    death_event[allocation[is_death]] = positions[is_death]
    at_entry = np.zeros(len(allocations.nbytes), dtype=bool)
    at_entry[counted[entry]] = True
    delta[at_entry[allocation]] = 0
    time_ns = np.concatenate([[start_ns], time_ns])
    peak = _peak(capture, live, time_ns)
    curve = LiveCurve(
        time_ns,
        np.concatenate([np.array([NONE], dtype=np.int32), allocation]),
        live,
        baseline_bytes,
        peak,
        int(allocations.birth_order[allocation[peak - 1]]) if peak else NONE,
        max(0, int(np.cumsum(delta, out=delta).max(initial=0))),
    )
    # the numbers of events give the order from here on, and these constant columns take no memory
    settled = np.broadcast_to(np.int32(NONE), at_entry.shape)
    allocations = replace(allocations, birth_order=settled, death_order=settled)
    return replace(allocations, birth_event=birth_event, death_event=death_event), curve


def _peak(capture: Capture, live_bytes: IntArray, time_ns: IntArray) -> int:
    """Return the event of the peak.

    If several events are equally high, return the first with a sample of the holders, or else the first with a sample
    of the roles. Each step of most programs reaches the same peak, so the event with the most evidence represents all
    of them.
    """
    highest = np.flatnonzero(live_bytes == live_bytes.max())
    ops, looks = capture.tables["ops"], capture.tables["role_looks"]
    if len(highest) > 1 and len(ops["start_ns"]):
        running = np.searchsorted(ops["start_ns"], time_ns[highest], side="right") - 1
        is_in_op = (running != NONE) & (time_ns[highest] <= ops["end_ns"][running])
        looked_at = is_in_op & np.isin(running, looks["op"][looks["in_op"] == 1])
        searched = looked_at & np.isin(running, capture.tables["holders"]["op"] - 1)
        choice = searched if searched.any() else looked_at
        highest = highest[choice] if choice.any() else highest
    return int(highest[0])


def _position(order: IntArray, time_ns: IntArray, is_death: NDArray[np.bool_]) -> IntArray:
    """Return sort keys that keep the allocator's own order.

    Events that it did not report are placed between, by time.

    Args:
        order: positions among the allocator's events, -1 for none.
        time_ns: times of the events.
        is_death: whether each is a death. A block whose free was not recorded ends just before the event that
            allocates its address again.

    Returns:
        4p, or just below, for an event at position p of the allocator's; 4p + 2 for an event between it and the next.
    """
    reported = order != NONE
    if not reported.any():
        return np.zeros(len(order), dtype=np.int8)
    keys: IntArray = 4 * order.astype(np.int64) - is_death
    others = np.flatnonzero(~reported)
    if len(others):
        in_order = np.flatnonzero(reported)[np.argsort(order[reported])]
        before = np.searchsorted(time_ns[in_order], time_ns[others], side="right") - 1
        positions = 4 * order[in_order[np.maximum(before, 0)]].astype(np.int64) + 2
        keys[others] = np.where(before >= 0, positions, _BEFORE_ALL)
    return keys
