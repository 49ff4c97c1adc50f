"""Turn an imported snapshot back into the dict that torch's viewer reads, with all values of the original file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.capture.columns import NOT_RECORDED
from memwatch.capture.schema import NONE
from memwatch.device_names import PINNED
from memwatch.memory_snapshot.fields import (
    DEVICE_NAMES,
    HOST_SEGMENTS,
    HOST_TRACES,
    NS_PER_US,
    PINNED_FORM,
    TIME,
    from_plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.capture import Capture

Snapshot = dict[str, Any]


def holds_snapshot(capture: Capture) -> bool:
    """Return True for a capture that was imported from a memory snapshot."""
    return bool(capture.rows("history") or capture.rows("segments"))


def snapshot_of(capture: Capture) -> Snapshot:
    """Return the memory snapshot from which a capture was imported."""
    return _Snapshot(capture).whole()


def device_index(name: str) -> int:
    """Return the number of a device, 0 for one without: `cuda:1` is 1, `cpu` is 0."""
    number = name.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


class _Snapshot:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._strings = [*capture.strings, ""]  # the id -1, which means none, is the index of the empty text
        self._has_times = "times" not in capture.meta.get(NOT_RECORDED, ())
        self._frames = _frames_of_stacks(capture)

    def whole(self) -> Snapshot:
        segments: list[dict[str, Any]] = []
        pinned_segments: list[dict[str, Any]] = []
        for name, segment in self._segments():
            (pinned_segments if name == PINNED else segments).append(segment)
        traces: list[list[dict[str, Any]]] = []
        pinned_trace: list[dict[str, Any]] = []
        for name, entry in self._entries():
            if name == PINNED:
                pinned_trace.append(entry)
                continue
            device = device_index(name)
            traces += ([] for _ in range(device + 1 - len(traces)))
            traces[device].append(entry)
        devices = max((segment["device"] + 1 for segment in segments), default=0)
        traces += ([] for _ in range(devices - len(traces)))
        found: Snapshot = {"segments": segments, "device_traces": traces}
        if "allocator_settings" in self._capture.meta:
            found["allocator_settings"] = self._capture.meta["allocator_settings"]
        names = self._capture.meta.get(DEVICE_NAMES)
        if isinstance(names, list):
            found[DEVICE_NAMES] = names
        form = self._capture.meta.get(PINNED_FORM)
        if isinstance(form, dict):
            if HOST_SEGMENTS in form:
                found[HOST_SEGMENTS] = pinned_segments
            if HOST_TRACES in form:
                found[HOST_TRACES] = [pinned_trace] if form[HOST_TRACES] == "nested" else pinned_trace
        return {**found, "external_annotations": list(self._annotations())}

    def _rows(self, table: str) -> Iterator[tuple[int, ...]]:
        columns = self._capture.tables[table].values()
        return zip(*(column.tolist() for column in columns), strict=True)

    def _device(self, name: int) -> int:
        return device_index(self._strings[name])

    def _entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for device, action, address, nbytes, stream, stack, time_ns, _, extra in self._rows("history"):
            name = self._strings[action]
            entry = {"action": name, "device_free" if name == "oom" else "addr": address, "size": nbytes}
            if stream != NONE:
                entry["stream"] = stream
            if self._has_times:
                entry[TIME] = time_ns // NS_PER_US
            if stack != NONE:
                entry["frames"] = self._frames[stack]
            yield self._strings[device], {**entry, **from_plain(self._strings[extra])}

    def _segments(self) -> Iterator[tuple[str, dict[str, Any]]]:
        blocks: dict[int, list[dict[str, Any]]] = {}
        for segment, block in self._blocks():
            blocks.setdefault(segment, []).append(block)
        for number, device, address, nbytes, *sums, stream, stack, extra in self._rows("segments"):
            inside, others = blocks.get(number, []), from_plain(self._strings[extra])
            frames = self._frames.get(stack, [])
            name = self._strings[device]
            if name == PINNED and others.keys() & {"size", "total_size"}:  # the file had no blocks for it
                yield name, {"address": address, "frames": frames, **others}
                continue
            streams = {} if name == PINNED and stream == NONE else {"stream": 0 if stream == NONE else stream}
            numbers = {} if name == PINNED else {"device": device_index(name)}
            yield (
                name,
                {
                    **numbers,
                    "address": address,
                    "total_size": nbytes,
                    **_sums(inside, sums),
                    **streams,
                    "frames": frames,
                    "blocks": inside,
                    **others,
                },
            )

    def _blocks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for segment, address, nbytes, requested, state, stack, _ in self._rows("blocks"):
            yield (
                segment,
                {
                    "address": address,
                    "size": nbytes,
                    "requested_size": nbytes if requested == NONE else requested,
                    "state": self._strings[state],
                    "frames": self._frames.get(stack, []),
                },
            )

    def _annotations(self) -> Iterator[dict[str, Any]]:
        for time_ns, device, extra in self._rows("annotations"):
            fields = from_plain(self._strings[extra])
            yield {**fields, "device": self._device(device), TIME: time_ns // NS_PER_US}


def _sums(blocks: list[dict[str, Any]], recorded: list[int]) -> dict[str, int]:
    """Return the sizes of a segment: those of the snapshot, or else the sums over its blocks."""
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    active = [block for block in blocks if block["state"] != "inactive"]
    sums = {
        "allocated_size": sum(block["size"] for block in allocated),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
    }
    return {
        name: summed if known == NONE else known
        for (name, summed), known in zip(sums.items(), recorded, strict=True)
    }


def _frames_of_stacks(capture: Capture) -> dict[int, list[dict[str, Any]]]:
    """Return the frames of each call stack, innermost first, as torch writes them."""
    stacks, strings = capture.tables["stacks"], capture.strings
    columns = (stacks[name].tolist() for name in ("stack", "depth", "file", "line", "function"))
    found: dict[int, list[dict[str, Any]]] = {}
    for stack, _, file, line, function in sorted(zip(*columns, strict=True)):
        frame = {"filename": strings[file], "line": line, "name": strings[function]}
        found.setdefault(stack, []).append(frame)
    return found
