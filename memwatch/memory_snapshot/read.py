"""Read a memory snapshot of torch into a capture: lives, call stacks, the history and the segments.

The format is what `torch/csrc/cuda/memory_snapshot.cpp` writes and `memory._snapshot()` documents.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch._version import __version__
from memwatch.capture.columns import NOT_RECORDED, Capture, Note
from memwatch.capture.schema import NONE, ORIGINS, RECORDED_BY_NAME
from memwatch.device_names import PINNED, is_host
from memwatch.devices.adapters import ALLOCATED, WAITING, Reserved
from memwatch.memory_snapshot.fields import (
    DEVICE_NAMES,
    HOST_SEGMENTS,
    HOST_TRACES,
    LATEST_US,
    MOST,
    NS_PER_US,
    PINNED_FORM,
    TIME,
    SnapshotError,
    Times,
    dicts,
    integer,
    lists,
    plain,
    text,
    times_of,
)
from memwatch.memory_snapshot.plain_pickle import read_plain_pickle
from memwatch.own_code import CodeOwner, code_owner
from memwatch.sizes import format_bytes
from memwatch.words.processes import counted, reserved_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memwatch.capture.columns import IntArray

MOST_FRAMES: Final = 1 << 24
"""A snapshot is refused if its call stacks have more frames in all. A guess."""
_LONGEST_PATH: Final = 4096  # characters, as many as a path may have bytes on Linux
_NO_FILE: Final = "none"
_OF_PROFILER: Final = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<name>.+)", re.DOTALL)
"""The name that torch.profiler gives to a Python call in a frame without a file: `train.py(12): step`."""
_PYTHON: Final = re.compile(r"python\d[\d.]*|python")

_Frame = tuple[int, int, int, int]


class Rows:
    """The rows of each table, as one flat list of numbers. Texts and call stacks have numbers."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._texts: dict[str, int] = {}
        self._frames: dict[int, _Frame] = {}
        self._stacks: dict[tuple[_Frame, ...], int] = {}
        self._stack_of_list: dict[int, int] = {}
        self._frame_count = 0
        self._storages = 0

    def next_storage(self) -> int:
        """Return a new storage number."""
        self._storages += 1
        return self._storages - 1

    def add(self, table: str, *values: int) -> None:
        """Append a row."""
        self._rows.setdefault(table, []).extend(values)

    def text(self, value: str) -> int:
        """Return the number of a text."""
        return self._texts.setdefault(value, len(self._texts))

    def optional_text(self, value: str) -> int:
        """Return the number of a text, -1 for empty text."""
        return self.text(value) if value else NONE

    @property
    def texts(self) -> list[str]:
        """The texts by number."""
        return list(self._texts)

    def columns(self) -> dict[str, list[IntArray]]:
        """Return the tables as columns, for `Capture.from_columns`."""
        shaped = {
            name: np.array(flat, dtype=np.int64).reshape(-1, len(RECORDED_BY_NAME[name].columns))
            for name, flat in self._rows.items()
        }
        return {name: list(table.T) for name, table in shaped.items()}

    def stack(self, frames: object) -> int:
        """Return the number of a call stack, -1 where there is none.

        Args:
            frames: the list of frames, innermost first. A snapshot has one list for many entries, so lists are known
                by identity: the snapshot must live as long as this object.
        """
        if not frames:
            return NONE
        number = self._stack_of_list.get(id(frames))
        if number is None:
            found = tuple(self._frame(frame) for frame in dicts(frames, "frames"))
            number = self._stacks.get(found, NONE)
            if number == NONE:
                number = self._new_stack(found)
            self._stack_of_list[id(frames)] = number
        return number

    def _new_stack(self, frames: tuple[_Frame, ...]) -> int:
        number = self._stacks[frames] = len(self._stacks)
        self._frame_count += len(frames)
        if self._frame_count > MOST_FRAMES:
            raise SnapshotError(
                f"its call stacks have more than {MOST_FRAMES:,} frames; record fewer entries"
            )
        for depth, frame in enumerate(frames):
            self.add("stacks", number, depth, *frame)
        return number

    def _frame(self, frame: dict[str, Any]) -> _Frame:
        known = self._frames.get(id(frame))
        if known is None:
            file, line, name = (
                text(frame, "filename"),
                integer(frame, "line", otherwise=0),
                text(frame, "name"),
            )
            call = _OF_PROFILER.fullmatch(name) if file == _NO_FILE else None
            if call is not None:
                file, line, name = call["file"], int(call["line"]), call["name"]
            known = (self.text(file), line, self.text(name), int(owner_of(file)))
            self._frames[id(frame)] = known
        return known


def owner_of(file: str) -> CodeOwner:
    """Return the owner of a file's code, from the names of its folders on the machine that wrote the snapshot.

    Args:
        file: a Python file, or the text that C++ frames have instead.
    """
    here = _owner_here(file)
    if here is not CodeOwner.PROGRAM or file.startswith("<"):
        return here
    path = PurePosixPath(file.replace("\\", "/"))
    if path.suffix not in (".py", ".pyw", ".ipynb"):
        return CodeOwner.TORCH  # C++, or a builtin
    for at, part in enumerate(path.parts[:-1]):
        if part in ("site-packages", "dist-packages"):
            return CodeOwner.TORCH if path.parts[at + 1] == "torch" else CodeOwner.INSTALLED
    in_lib = any(
        outer.startswith("lib") and _PYTHON.fullmatch(inner)
        for outer, inner in zip(path.parts, path.parts[1:-1], strict=False)
    )
    return CodeOwner.PYTHON if in_lib else CodeOwner.PROGRAM


def _owner_here(file: str) -> CodeOwner:
    """Return the owner of a file on this machine. A file that is not a path here belongs to the program."""
    try:
        return code_owner(file) if len(file) <= _LONGEST_PATH else CodeOwner.PROGRAM
    except (OSError, ValueError):
        return CodeOwner.PROGRAM


_BEFORE, _IN_HISTORY = ORIGINS.index("baseline"), ORIGINS.index("unobserved")
ALLOC: Final = "alloc"
FREE_REQUESTED: Final = "free_requested"
FREE_COMPLETED: Final = "free_completed"


@dataclass
class Lives:
    """The allocations of one device, as rows of `births` and `deaths`.

    Attributes:
        device: string id of the device.
        start_ns: when the history begins.
        requests: whether the history has requests to free. If not, a completed free ends a life.
        before_count: number of allocations that are freed in the history but were made before it.
        before_bytes: their bytes.
    """

    rows: Rows
    device: int
    start_ns: int
    requests: bool
    before_count: int = 0
    before_bytes: int = 0
    _alive: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def follow(self, action: str, address: int, nbytes: int, time_ns: int) -> int:
        """Record what an entry begins or ends; return its storage, -1 for none."""
        if action == ALLOC:
            missed = self._alive.pop(address, NONE)
            if missed != NONE:  # its free is not in the history, so assume that it came just before
                self._end(missed, time_ns - 1)
            self._waiting.pop(address, None)
            return self._begin(address, nbytes, time_ns, _IN_HISTORY)
        if action == FREE_REQUESTED:
            storage = self._waiting[address] = self._freed(address, nbytes, time_ns)
            return storage
        if action == FREE_COMPLETED:
            waiting = self._waiting.pop(address, NONE)
            if waiting != NONE or (self.requests and address not in self._alive):
                return waiting
            return self._freed(address, nbytes, time_ns)
        return NONE

    def in_block(self, address: int, nbytes: int) -> int:
        """Return the storage in a block that is allocated at the end."""
        storage = self._alive.pop(address, NONE)
        return self._begin(address, nbytes, self.start_ns, _BEFORE) if storage == NONE else storage

    def waiting_in(self, address: int) -> int:
        """Return the storage that was in a block which another stream still uses, -1 if it ended before."""
        return self._waiting.get(address, NONE)

    @property
    def vanished(self) -> list[int]:
        """The storages without a free and without a block at the end. Read this after all blocks were added."""
        return list(self._alive.values())

    def _begin(self, address: int, nbytes: int, time_ns: int, origin: int) -> int:
        storage = self.rows.next_storage()
        self.rows.add("births", storage, NONE, time_ns, address, nbytes, self.device, origin, NONE)
        self.sizes[storage] = nbytes
        if origin == _IN_HISTORY:
            self._alive[address] = storage
        return storage

    def _freed(self, address: int, nbytes: int, time_ns: int) -> int:
        storage = self._alive.pop(address, NONE)
        if storage == NONE:
            storage = self._begin(address, nbytes, self.start_ns, _BEFORE)
            self.before_count += 1
            self.before_bytes += nbytes
        self._end(storage, time_ns)
        return storage

    def _end(self, storage: int, time_ns: int) -> None:
        self.rows.add("deaths", storage, 0, time_ns)


@dataclass
class DeviceFigures:
    """The figures of one device for the notes. A pair is a count and bytes.

    Attributes:
        reserved: the memory that the allocator held at the end.
        out_of_memory: for each time that memory ran out, the requested bytes and the free bytes of the device.
        before: allocations that are freed in the history but were made before it.
        vanished: allocations in the history without a free that do not exist at the end.
    """

    reserved: Reserved = field(default_factory=Reserved)
    out_of_memory: list[tuple[int, int]] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    vanished: tuple[int, int] = (0, 0)


def notes_of(
    name: str,
    unknown: Sequence[str],
    devices: Mapping[str, DeviceFigures],
    left_out: Sequence[str],
    *,
    times_known: bool,
) -> list[Note]:
    """Return the notes of an import.

    Args:
        name: the file's name.
        unknown: the data that no snapshot has.
        devices: the figures of each device.
        left_out: names of fields that were not kept.
        times_known: whether the snapshot has times.
    """
    source = (
        f"read from torch's memory snapshot {name}, which knows allocations, frees, their calls and the allocator's "
        f"segments; not recorded: {', '.join(unknown)}"
    )
    sentences = [
        ("imported", source),
        ("sizes", "sizes are the requested bytes; the allocator rounds them up"),
    ]
    if not times_known:
        sentences.append(("times", "the snapshot has no times; its entries are shown in their order"))
    for device, figures in devices.items():
        sentences += _of_device(device, figures)
    if left_out:
        sentences.append(("left out", f"fields of the snapshot that were not kept: {', '.join(left_out)}"))
    return [Note(0, kind, text) for kind, text in sentences]


def _of_device(device: str, figures: DeviceFigures) -> Iterator[tuple[str, str]]:
    if figures.reserved.segments and not is_host(device):
        yield "reserved", f"{device}: at the end {reserved_text(figures.reserved)}"
    if device == PINNED:
        yield (
            "sizes",
            f"{PINNED}: pinned host memory; its sizes are those of whole blocks, which torch rounds up",
        )
    if figures.out_of_memory:
        asked, free = (format_bytes(nbytes) for nbytes in figures.out_of_memory[0])
        times = counted(len(figures.out_of_memory), "time")
        text = f"{device}: memory ran out {times}; at first {asked} were requested while the device had {free} free"
        yield "out of memory", text
    if figures.before[0]:
        text = (
            f"{device}: {_allocations(figures.before)} began before the history does; they count as live at its start, "
            "and the calls that made them are not recorded"
        )
        yield "history", text
    if figures.vanished[0]:
        text = (
            f"{device}: {_allocations(figures.vanished)} were gone at the end without a free in the history; "
            "they count as live until its end"
        )
        yield "history", text


def _allocations(pair: tuple[int, int]) -> str:
    count, nbytes = pair
    return f"{counted(count, 'allocation')} of {format_bytes(nbytes)}"


MOST_BYTES: Final = 1 << 32
"""Larger files are refused: their values would fill the memory of most machines. A guess."""
MOST_ENTRIES: Final = 1 << 24  # entries of the history, blocks or segments; a guess
MOST_DEVICES: Final = 256  # devices of one process; a guess
UNKNOWN: Final = ("ops", "uses", "modules", "phases", "saved tensors", "categories", "holders")
"""The data that a memory snapshot does not have."""
_ENTRY: Final = frozenset({"action", "addr", "device_free", "size", "stream", "frames", TIME})
_SEGMENT: Final = frozenset(
    {"device", "address", "total_size", "allocated_size", "active_size", "requested_size"}
    | {"stream", "frames", "blocks"}
)
_BLOCK: Final = frozenset({"address", "addr", "size", "requested_size", "state", "frames", "history"})
_TOP: Final = frozenset(
    {"segments", "device_traces", "allocator_settings", "external_annotations", DEVICE_NAMES}
    | {HOST_SEGMENTS, HOST_TRACES}
)
_PINNED_INDEX: Final = MOST_DEVICES
"""The number that this module gives to pinned memory. The devices of a snapshot have smaller numbers."""
_DEVICE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}(:\d{1,4})?")


def read_snapshot(path: str | os.PathLike[str], *, device: str = "cuda") -> Capture:
    """Return the capture of a file that torch's `_dump_snapshot()` wrote; nothing in it is run.

    Args:
        path: the file.
        device: the type of its devices, such as `cuda` or `xpu`. The file has only their numbers.

    Raises:
        SnapshotError: the file is missing, is not a memory snapshot, or contains more than plain data.
    """
    source = Path(path)
    if not source.is_file():
        raise SnapshotError(
            f"{source} is not a file; write one with _dump_snapshot() of torch's memory module"
        )
    try:
        nbytes = source.stat().st_size
        if nbytes > MOST_BYTES:
            raise SnapshotError(
                f"it has {format_bytes(nbytes)}, more than {format_bytes(MOST_BYTES)}; record less with "
                "_record_memory_history(max_entries=...)"
            )
        return _Import(read_plain_pickle(source.read_bytes()), device).capture(source.name)
    except SnapshotError as error:
        raise SnapshotError(f"{source} is not imported: {error}") from error


class _Import:
    """One snapshot while it becomes rows."""

    def __init__(self, snapshot: Any, device_type: str) -> None:
        if isinstance(snapshot, list):  # what memory_snapshot() returns
            snapshot = {"segments": snapshot, "device_traces": []}
        if not isinstance(snapshot, dict) or not snapshot.keys() & {
            "segments", "device_traces", HOST_SEGMENTS, HOST_TRACES,
        }:  # fmt: skip
            raise SnapshotError("it is not a memory snapshot: it lacks segments and device_traces")
        self._snapshot: dict[str, Any] = snapshot
        self._device_type = device_type
        self._device_names = _device_names(snapshot)
        self.rows = Rows()
        self._entries = 0
        traces = lists(snapshot.get("device_traces", []), "device_traces", most=MOST_DEVICES)
        self._traces = [list(self._counted(dicts(trace, "entries"))) for trace in traces]
        self._pinned_form: dict[str, Any] = {}
        pinned = self._pinned_trace()
        self.times: Times = times_of([*self._traces, *([pinned] if pinned else [])])
        self._history_of = {index: trace for index, trace in enumerate(self._traces) if trace}
        self._times_of = dict(enumerate(self.times.of_device[: len(self._traces)]))
        if pinned:
            self._history_of[_PINNED_INDEX] = pinned
            self._times_of[_PINNED_INDEX] = self.times.of_device[-1]
        self._lives: dict[int, Lives] = {}
        self._figures: dict[int, DeviceFigures] = {}
        self._left_out: set[str] = set()
        self._segment_count = 0

    def _counted(self, entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield entries until there are too many. A small file can refer to the same list a thousand times."""
        for entry in entries:
            self._entries += 1
            if self._entries > MOST_ENTRIES:
                raise SnapshotError(
                    f"it has more than {MOST_ENTRIES:,} entries, segments and blocks; record less"
                )
            yield entry

    def _pinned_trace(self) -> list[dict[str, Any]]:
        """Return the history of the pinned memory: one list of entries, or a list of such lists."""
        if HOST_TRACES not in self._snapshot:
            return []
        found = self._snapshot[HOST_TRACES]
        is_nested = isinstance(found, (list, tuple)) and any(
            isinstance(each, (list, tuple)) for each in found
        )
        self._pinned_form[HOST_TRACES] = "nested" if is_nested else "flat"
        traces = lists(found, HOST_TRACES, most=MOST_DEVICES) if is_nested else [found]
        return [entry for trace in traces for entry in self._counted(dicts(trace, HOST_TRACES))]

    def capture(self, name: str) -> Capture:
        """Return the capture.

        Args:
            name: the file's name, for the notes.
        """
        for index, trace in self._history_of.items():
            self._history(index, trace)
        self._segments()
        self._pinned_segments()
        self._annotations()
        self._left_out |= self._snapshot.keys() - _TOP
        for index, lives in self._lives.items():
            figures, vanished = self._figures[index], lives.vanished
            figures.before = lives.before_count, lives.before_bytes
            if figures.reserved.segments:
                figures.vanished = len(vanished), sum(lives.sizes[each] for each in vanished)
        if sum(sum(lives.sizes.values()) for lives in self._lives.values()) > MOST:
            raise SnapshotError("its allocations add up to more than any machine has")
        devices = {self._device(index): figures for index, figures in sorted(self._figures.items())}
        notes = notes_of(name, UNKNOWN, devices, sorted(self._left_out), times_known=self.times.are_known)
        return Capture.from_columns(self.rows.columns(), self.rows.texts, self._meta(name), notes)

    def _meta(self, name: str) -> dict[str, Any]:
        times = self.times
        meta: dict[str, Any] = {
            "memwatch": __version__,
            "imported": name,
            "complete": True,
            "start_ns": times.start_ns,
        }
        if self._device_names:
            meta[DEVICE_NAMES] = self._device_names
        meta[NOT_RECORDED] = [*UNKNOWN] if times.are_known else [*UNKNOWN, "times"]
        if times.are_known:
            meta |= {"end_ns": times.end_ns, "started_s": times.start_ns / 1e9}
        if self._pinned_form:
            meta[PINNED_FORM] = self._pinned_form
        accelerators = [index for index in self._lives if index != _PINNED_INDEX]
        candidates = accelerators or list(self._lives)
        most = max(candidates, key=lambda index: sum(self._lives[index].sizes.values()), default=0)
        meta["device"] = self._device(most)
        reserved = {index: each.reserved.reserved_bytes for index, each in sorted(self._figures.items())}
        meta["reserved_bytes"] = {
            name: nbytes
            for index, nbytes in reserved.items()
            if nbytes and not is_host(name := self._device(index))  # the host's allocator keeps nothing
        }
        settings = self._snapshot.get("allocator_settings")
        if isinstance(settings, dict):
            nested = {key: self._settings(each) for key, each in settings.items() if isinstance(each, dict)}
            meta["allocator_settings"] = {**self._settings(settings, nested), **nested}
        return meta

    def _settings(self, settings: dict[str, Any], nested: Iterable[str] = ()) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(plain(settings, nested, self._left_out) or "{}")
        return kept

    def _device(self, index: int) -> str:
        if index == _PINNED_INDEX:
            return PINNED
        if index < len(self._device_names) and self._device_names[index]:
            return self._device_names[index]
        return (
            self._device_type if self._device_type == "cpu" and index == 0 else f"{self._device_type}:{index}"
        )

    def _lives_of(self, index: int, *, requests: bool = False) -> Lives:
        """Return the lives of a device, and make them at the first call."""
        if index not in self._lives:
            device = self.rows.text(self._device(index))
            self._lives[index] = Lives(self.rows, device, self.times.start_ns, requests)
            self._figures[index] = DeviceFigures()
        return self._lives[index]

    def _history(self, index: int, trace: list[dict[str, Any]]) -> None:
        requests = any(entry.get("action") == FREE_REQUESTED for entry in trace)
        lives, rows = self._lives_of(index, requests=requests), self.rows
        for entry, time_ns in zip(trace, self._times_of[index].tolist(), strict=True):
            action, nbytes = text(entry, "action"), integer(entry, "size", otherwise=0)
            is_oom = action == "oom"
            is_life = action in (ALLOC, FREE_REQUESTED, FREE_COMPLETED)
            address = (
                integer(entry, "device_free", otherwise=0)
                if is_oom
                else integer(entry, "addr", least=int(is_life), otherwise=None if is_life else 0)
            )
            storage = lives.follow(action, address, nbytes, time_ns)
            if is_oom:
                self._figures[index].out_of_memory.append((nbytes, address))
            rows.add(
                "history",
                lives.device,
                rows.text(action),
                address,
                nbytes,
                integer(entry, "stream", least=-MOST, otherwise=NONE),
                rows.stack(entry.get("frames")),
                time_ns,
                storage,
                rows.optional_text(plain(entry, _ENTRY, self._left_out)),
            )

    def _segments(self) -> None:
        for segment in self._counted(dicts(self._snapshot.get("segments", []), "segments")):
            index = integer(segment, "device", most=MOST_DEVICES - 1, otherwise=0)
            self._segment(index, segment, plain(segment, _SEGMENT, self._left_out))

    def _pinned_segments(self) -> None:
        """Add the segments of pinned memory. torch never divides them, so they may have flags instead of blocks."""
        if HOST_SEGMENTS not in self._snapshot:
            return
        self._pinned_form[HOST_SEGMENTS] = True
        for segment in self._counted(dicts(self._snapshot[HOST_SEGMENTS], HOST_SEGMENTS)):
            if "blocks" in segment:
                extra = plain(segment, _SEGMENT - {"device"}, self._left_out)
                self._segment(_PINNED_INDEX, segment, extra)
                continue
            nbytes = integer(segment, "total_size" if "total_size" in segment else "size")
            is_allocated, is_active = (_is_set(segment, name) for name in ("allocated", "active"))
            state = ALLOCATED if is_allocated else WAITING[0] if is_active else "inactive"
            frames = segment.get("frames")
            block = {"size": nbytes, "state": state, "frames": frames}
            whole = {
                "address": integer(segment, "address"), "total_size": nbytes, "frames": frames, "blocks": [block],
            }  # fmt: skip
            extra = plain(segment, ("address", "frames"), self._left_out)
            self._segment(_PINNED_INDEX, whole, extra)

    def _segment(self, index: int, segment: dict[str, Any], extra: str) -> None:
        """Add a segment and its blocks.

        Args:
            index: number of the device.
            segment: the segment.
            extra: the fields without a column, as JSON.
        """
        rows, number = self.rows, self._segment_count
        self._segment_count += 1
        lives, reserved = self._lives_of(index), self._figures[index].reserved
        nbytes = integer(segment, "total_size")
        reserved.add_segment(nbytes)
        rows.add(
            "segments",
            number,
            lives.device,
            integer(segment, "address"),
            nbytes,
            *(
                integer(segment, f"{kind}_size", otherwise=NONE)
                for kind in ("allocated", "active", "requested")
            ),
            integer(segment, "stream", least=-MOST, otherwise=NONE),
            rows.stack(segment.get("frames")),
            rows.optional_text(extra),
        )
        self._blocks(number, segment, lives, reserved)

    def _blocks(self, number: int, segment: dict[str, Any], lives: Lives, reserved: Reserved) -> None:
        address, rows = integer(segment, "address"), self.rows
        for block in self._counted(dicts(segment.get("blocks", []), "blocks")):
            address = integer(block, "address", otherwise=address)
            nbytes, state = integer(block, "size"), text(block, "state")
            requested, frames = _asked_for(block)
            asked = nbytes if requested == NONE else requested
            storage = NONE
            if state == ALLOCATED:
                storage = lives.in_block(address, asked)
            elif state in WAITING:
                storage = lives.waiting_in(address)
            reserved.add_block(nbytes, asked, allocated=state == ALLOCATED, waiting=state in WAITING)
            rows.add(
                "blocks", number, address, nbytes, requested, rows.text(state), rows.stack(frames), storage
            )
            self._left_out |= block.keys() - _BLOCK
            address += nbytes

    def _annotations(self) -> None:
        annotations = dicts(self._snapshot.get("external_annotations", []), "external_annotations")
        for annotation in self._counted(annotations):
            time_ns = min(integer(annotation, TIME, otherwise=0), LATEST_US) * NS_PER_US
            device = self.rows.text(
                self._device(integer(annotation, "device", most=MOST_DEVICES - 1, otherwise=0))
            )
            extra = plain(annotation, ("device", TIME), self._left_out)
            self.rows.add("annotations", time_ns, device, self.rows.optional_text(extra))


def _is_set(segment: dict[str, Any], name: str) -> bool:
    """Return whether a segment is allocated or active: by the flag of this name, or by a size that is not 0."""
    flag = segment.get(name)
    return bool(integer(segment, name if flag is not None else f"{name}_size", otherwise=0))


def _asked_for(block: dict[str, Any]) -> tuple[int, object]:
    """Return the bytes that the program asked for, -1 if they are not known, and the frames of its call."""
    history = block.get("history")
    if "frames" not in block and history:  # as torch 1.13 and 2.0 wrote it
        for latest in dicts(history, "history"):
            return integer(latest, "real_size", otherwise=NONE), latest.get("frames")
    return integer(block, "requested_size", otherwise=NONE), block.get("frames")


def _device_names(snapshot: dict[str, Any]) -> list[str]:
    """Return the names that memwatch gave to the devices of a snapshot, by number. torch writes no names."""
    names = snapshot.get(DEVICE_NAMES)
    if not isinstance(names, list) or len(names) > MOST_DEVICES:
        return []
    known = [name if type(name) is str and _DEVICE_NAME.fullmatch(name) else "" for name in names]
    return known if any(known) else []
