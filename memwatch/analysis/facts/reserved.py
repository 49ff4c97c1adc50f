"""Figures of an accelerator's allocator: the live bytes at entry, the reserved segments, and the largest hole.

Each allocator event has the reserved bytes after it. If they rise, there is a new segment, which begins with the
event's block. No event shows which segment was given back, but the segments at the end of the block are known. So the
segments at the peak are known if the remaining ones add up to the bytes that were reserved at the peak.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, Allocations
from memwatch.analysis.facts.devices import devices_of
from memwatch.capture.schema import NONE
from memwatch.device_names import is_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.live_curve import LiveCurve
    from memwatch.capture import Capture
    from memwatch.capture.columns import Columns, IntArray

# The live bytes at entry as the allocator of an accelerator counts them: in whole blocks, with all memory.
#
# The recorder numbers the storages that Python shows. Their blocks are larger, and C++ may hold further memory, such
# as the workspace of a library. If the allocator reported its allocated bytes at entry, the baseline equals that
# figure.
_WITHOUT_NUMBER: Final = (
    "storage", "address", "thread", "op", "death_ns", "birth_order", "death_order", "birth_event", "death_event",
)  # fmt: skip


def as_counted_at_entry(capture: Capture, allocations: Allocations) -> Allocations:
    """Return the allocations with live bytes at entry in whole blocks. Memory without a storage gets one row.

    Args:
        capture: the recorded tables.
        allocations: as joined, without events of the live curve.
    """
    counted_bytes = capture.meta.get("entry_allocated_bytes", {})
    start_ns = int(capture.meta.get("start_ns", 0))
    for name in set(devices_of(capture)) & counted_bytes.keys():
        device = capture.strings.index(name)
        here = allocations.counted & (allocations.origin == BASELINE) & (allocations.device == device)
        here &= allocations.birth_ns <= start_ns
        rounding = int(capture.meta.get("rounding_bytes", {}).get(name, 1))
        allocations = _counted(allocations, here, rounding, int(counted_bytes[name]))
        rest_bytes = int(counted_bytes[name]) - int(allocations.nbytes[here & allocations.counted].sum())
        if rest_bytes > 0:
            allocations = _with_rest(allocations, rest_bytes, device, start_ns)
    return allocations


def _counted(
    allocations: Allocations, here: NDArray[np.bool_], rounding: int, counted_bytes: int
) -> Allocations:
    """Return the allocations with blocks at entry rounded up. If they exceed the allocator's count, leave some out.

    The blocks without a storage are left out: only their frees were recorded, so an unobserved thread may have
    allocated them after entry.
    """
    rounded: IntArray = -(-allocations.nbytes // rounding) * rounding
    nbytes = np.where(here, rounded, allocations.nbytes)
    if nbytes[here].sum() <= counted_bytes:
        return replace(allocations, nbytes=nbytes)
    by_storage = here & (allocations.storage != NONE)
    counted = allocations.counted & ~(here & ~by_storage)
    if nbytes[by_storage].sum() > counted_bytes:  # blocks of this device are not multiples of `rounding`
        nbytes = allocations.nbytes
    return replace(allocations, nbytes=nbytes, counted=counted)


def _with_rest(allocations: Allocations, nbytes: int, device: int, start_ns: int) -> Allocations:
    """Return the allocations and one more for memory that was there at entry and has no storage."""
    row = dict.fromkeys(_WITHOUT_NUMBER, NONE)
    row |= {"nbytes": nbytes, "device": device, "address": 0, "birth_ns": start_ns}
    row |= {"origin": BASELINE, "counted": True}
    columns: dict[str, Any] = {
        field.name: np.append(getattr(allocations, field.name), row[field.name])
        for field in fields(allocations)
        if field.name in row
    }
    return replace(allocations, **{**columns, "counted": columns["counted"].astype(bool)})


_MORE: Final = ("segment_alloc", "segment_map")
_LESS: Final = ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class ReservedBytes:
    """The bytes that an allocator reserved on a device, in use or free.

    Attributes:
        at_peak_bytes: reserved bytes when most bytes were live.
        most_bytes: the highest number of reserved bytes.
        at_end_bytes: reserved bytes when the block ended.
        live_at_peak_bytes: the live part of the bytes reserved at the peak.
        largest_free_bytes: the largest stretch between live blocks at the peak, or None if unknown. A freed block
            that a stream still used counts as free.
    """

    at_peak_bytes: int
    most_bytes: int
    at_end_bytes: int
    live_at_peak_bytes: int
    largest_free_bytes: int | None

    @property
    def free_at_peak_bytes(self) -> int:
        """The bytes that were reserved at the peak and not live."""
        return self.at_peak_bytes - self.live_at_peak_bytes


def reserved_bytes(
    capture: Capture, device: str, allocations: Allocations, curve: LiveCurve, alive: NDArray[np.bool_]
) -> ReservedBytes | None:
    """Return the bytes that a device's allocator reserved. None for an allocator without a cache or without reports.

    Args:
        capture: the recorded tables, narrowed to the device.
        device: its name.
        allocations: every piece of memory.
        curve: the live curve.
        alive: which allocations are alive at the peak.
    """
    if is_host(device):
        return None
    if capture.rows("segments") or capture.rows("history"):
        return _imported(capture, device, curve)
    events = capture.tables["allocator"]
    entry_bytes, end_bytes = (
        int(capture.meta.get(name, {}).get(device, 0)) for name in ("entry_reserved_bytes", "reserved_bytes")
    )
    if not entry_bytes and capture.is_zero("allocator", "reserved_bytes"):
        return None
    after = np.concatenate([[entry_bytes], events["reserved_bytes"]])
    at_peak = 1 + _order_of_peak(events, curve)
    ends = dict(map(tuple, capture.meta.get("segments", {}).get(device, ())))
    segments = _segments_at(at_peak, after, events["address"], ends)
    largest_free_bytes = None
    if sum(segments.values()) == after[at_peak] and allocations.address[alive].all():
        holes = _holes(segments, allocations.address[alive], allocations.nbytes[alive])
        largest_free_bytes = max(holes, default=0)
    return ReservedBytes(
        int(after[at_peak]), int(after.max()), end_bytes, curve.peak_bytes, largest_free_bytes
    )


def _imported(capture: Capture, device: str, curve: LiveCurve) -> ReservedBytes | None:
    """Return the reserved bytes in a memory snapshot. They come from its segments at the end and from its history.

    A snapshot has the requested sizes of blocks, not their rounded sizes, so the holes between them are unknown.
    """
    history, segments = (_of_device(capture, name, device) for name in ("history", "segments"))
    action = np.array(capture.text(history["action"]), dtype=object)
    sign = np.isin(action, _MORE).astype(np.int64) - np.isin(action, _LESS)
    end_bytes = int(segments["nbytes"].sum())
    changes = np.concatenate([[0], sign * history["nbytes"]])
    after = end_bytes - changes.sum() + np.cumsum(changes)
    at_peak = int(np.searchsorted(history["time_ns"], curve.time_ns[curve.peak_event], side="right"))
    if not after.any():
        return None
    return ReservedBytes(int(after[at_peak]), int(after.max()), end_bytes, curve.peak_bytes, None)


def _of_device(capture: Capture, table: str, device: str) -> Columns:
    columns = capture.tables[table]
    here = np.array([name == device for name in capture.text(columns["device"])], dtype=bool)
    return {name: values[here] for name, values in columns.items()}


def _order_of_peak(events: Columns, curve: LiveCurve) -> int:
    """Return the position of the peak among the allocator's events, -1 if it is before all."""
    if int(curve.allocation[curve.peak_event]) == NONE:
        return -1
    if curve.peak_order != NONE:
        return curve.peak_order
    return int(np.searchsorted(events["time_ns"], curve.time_ns[curve.peak_event], side="right")) - 1


def _segments_at(at: int, after: IntArray, address: IntArray, ends: dict[int, int]) -> dict[int, int]:
    """Return the sizes of the segments at an event, by address.

    They are the segments at the end, without those that were made later. If these have too few bytes, the segments that
    were released later are added.

    Args:
        at: position in `after`.
        after: reserved bytes after each event, the figure at entry first.
        address: the block of each event.
        ends: the segments at the end.
    """
    rises = np.flatnonzero(np.diff(after) > 0)
    sizes = np.diff(after)[rises].tolist()
    made = list(zip(rises.tolist(), address[rises].tolist(), sizes, strict=True))
    later = {start for event, start, _ in made if event >= at}
    before = {start: nbytes for event, start, nbytes in made if event < at}
    segments = {start: nbytes for start, nbytes in ends.items() if start not in later or start in before}
    gone = {start: nbytes for start, nbytes in before.items() if start not in segments}
    if sum(segments.values()) < after[at]:
        segments |= gone
    return segments


def _holes(segments: dict[int, int], address: IntArray, nbytes: IntArray) -> list[int]:
    """Return the bytes between live blocks, of every segment."""
    order = np.argsort(address)
    starts, ends = address[order], (address + nbytes)[order]
    holes: list[int] = []
    for start, size in segments.items():
        first, last = np.searchsorted(starts, [start, start + size])
        inside = zip(
            [start, *ends[first:last].tolist()], [*starts[first:last].tolist(), start + size], strict=True
        )
        holes += [upper - lower for lower, upper in inside]
    return holes
