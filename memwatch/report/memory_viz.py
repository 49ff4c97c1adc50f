"""Write a reading as a memory snapshot for torch's viewer, `_memory_viz` and https://pytorch.org/memory_viz.

An imported snapshot is written unchanged. For other captures the viewer shows every allocation and free, with its
call and category. The viewer draws a block only inside a segment, but memwatch does not record the allocator's
segments. Each allocation therefore gets a segment of its own with the same lifetime, and the file's reserved bytes
equal its allocated bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.capture.schema import NONE
from memwatch.memory_snapshot.fields import DEVICE_NAMES, NS_PER_US, TIME
from memwatch.memory_snapshot.write import Snapshot, holds_snapshot, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memwatch.analysis.reading import DeviceReading
    from memwatch.capture import Capture

_NO_ADDRESS: Final = 1 << 46
"""Address from which tensors without memory, such as those of an estimate, get addresses one after the other. Programs
use lower addresses."""

_BIRTH: Final = ("segment_alloc", "alloc")
_DEATH: Final = ("free_requested", "free_completed", "segment_free")


def memory_viz(capture: Capture, readings: Sequence[DeviceReading]) -> Snapshot:
    """Return the memory snapshot of a capture.

    Args:
        capture: the recorded tables.
        readings: its readings, one of each device.
    """
    if holds_snapshot(capture):
        return snapshot_of(capture)
    numbers = _numbers({name for reading in readings for name in reading.storages["device"]})
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(numbers.values(), default=-1) + 1)]
    for reading in readings:
        written = _Allocations(reading, numbers, int(capture.meta.get("start_ns", 0)))
        for number, entry in written.entries():
            traces[number].append(entry)
        segments += written.segments()
    names = {number: name for name, number in numbers.items()}
    listed = [names.get(number, "") for number in range(len(traces))]
    return {"segments": segments, "device_traces": traces, DEVICE_NAMES: listed}


def _numbers(devices: set[str]) -> dict[str, int]:
    """Return a number for each device: an accelerator keeps its own, and the CPU gets a later one, as in torch."""
    numbers: dict[str, int] = {}
    for name in sorted(devices, key=lambda name: (":" not in name, name)):
        own = int(name.rpartition(":")[2]) if ":" in name else 0
        taken = set(numbers.values())
        numbers[name] = own if ":" in name and own not in taken else max(taken, default=-1) + 1
    return numbers


class _Allocations:
    """The entries and segments of one reading."""

    def __init__(self, reading: DeviceReading, numbers: Mapping[str, int], start_ns: int) -> None:
        self._reading, self._numbers, self._start_ns = reading, numbers, start_ns
        columns = ("device", "nbytes", "address", "category", "stack", "birth_event", "death_event")
        rows = reading.storages[reading.storages["counted"]]
        self._rows = dict(zip(rows.index.tolist(), rows[list(columns)].itertuples(index=False), strict=True))
        self._frames: dict[int, list[dict[str, Any]]] = {NONE: []}
        self._next_address = _NO_ADDRESS
        self._addresses = {storage: self._address(row) for storage, row in self._rows.items()}

    def entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of the device and the entry, in order."""
        timeline = self._reading.timeline.iloc[1:]
        columns = (timeline[name].tolist() for name in ("storage", "delta_bytes", "time_ns"))
        for storage, delta, time_ns in zip(*columns, strict=True):
            number = self._numbers[self._rows[storage].device]
            for action in _BIRTH if delta > 0 else _DEATH:
                yield number, self._entry(action, storage, abs(delta), time_ns)
        end_us = self._time_us(int(timeline["time_ns"].max()) if len(timeline) else 0)
        for name in sorted({row.device for row in self._rows.values()}):
            # The viewer takes colours from categories, and fails if `unknown` is not among them.
            last = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "category": "unknown"}
            yield (
                self._numbers[name],
                {**last, TIME: end_us},
            )

    def _entry(self, action: str, storage: int, nbytes: int, time_ns: int) -> dict[str, Any]:
        row = self._rows[storage]
        entry = {
            "action": action,
            "addr": self._addresses[storage],
            "size": nbytes,
            "stream": 0,
            TIME: self._time_us(time_ns),
        }
        if action == "alloc":
            entry |= {"frames": self._frames_of(row.stack), "category": row.category}
        return entry

    def _time_us(self, time_ns: int) -> int:
        """Return the unix time of a time since entry, in microseconds."""
        return (self._start_ns + time_ns) // NS_PER_US

    def segments(self) -> list[dict[str, Any]]:
        """Return a segment for each storage that is alive at the end."""
        alive = ((storage, row) for storage, row in self._rows.items() if row.death_event == NONE)
        return [self._segment(storage, row) for storage, row in alive]

    def _segment(self, storage: int, row: Any) -> dict[str, Any]:
        address, frames = self._addresses[storage], self._frames_of(row.stack)
        sizes = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), row.nbytes)
        block = {
            "address": address,
            "size": row.nbytes,
            "requested_size": row.nbytes,
            "state": "active_allocated",
            "frames": frames,
        }
        return {
            "device": self._numbers[row.device],
            "address": address,
            **sizes,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block],
        }

    def _address(self, row: Any) -> int:
        if row.address:
            return int(row.address)
        self._next_address += row.nbytes
        return self._next_address - int(row.nbytes)

    def _frames_of(self, stack: int) -> list[dict[str, Any]]:
        if stack not in self._frames:
            self._frames[stack] = [
                {"filename": file, "line": line, "name": function}
                for file, line, function, _ in self._reading.stack(stack)
            ]
        return self._frames[stack]
