"""Read a memory snapshot of torch's into a capture: lives, call stacks, the history and the segments.

The format is what `torch/csrc/cuda/memory_snapshot.cpp` writes and `memory._snapshot()` documents.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch._version import __version__
from memwatch.capture.capture import NOT_RECORDED, Capture
from memwatch.capture.schema import NONE
from memwatch.device_names import is_host
from memwatch.memory_snapshot import lives as life
from memwatch.memory_snapshot.errors import SnapshotError
from memwatch.memory_snapshot.fields import DEVICE_NAMES, MOST, dicts, integer, lists, plain, text
from memwatch.memory_snapshot.notes import Told, notes_of
from memwatch.memory_snapshot.plain_pickle import read_plain_pickle
from memwatch.memory_snapshot.rows import Rows
from memwatch.memory_snapshot.times import LATEST_US, NS_PER_US, TIME, Times, times_of
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from memwatch.devices.reserved import Reserved

MOST_BYTES: Final = 1 << 32
"""Larger files are refused: their values would fill the memory of most machines."""
MOST_ENTRIES: Final = 1 << 24
MOST_DEVICES: Final = 256
UNKNOWN: Final = ("ops", "uses", "modules", "phases", "saved tensors", "categories", "holders")
"""What no memory snapshot knows."""
_ALLOCATED: Final = "active_allocated"
_WAITING: Final = ("active_pending_free", "active_awaiting_free")
_ENTRY: Final = frozenset({"action", "addr", "device_free", "size", "stream", "frames", TIME})
_SEGMENT: Final = frozenset(
    {"device", "address", "total_size", "allocated_size", "active_size", "requested_size"}
    | {"stream", "frames", "blocks"}
)
_BLOCK: Final = frozenset({"address", "addr", "size", "requested_size", "state", "frames", "history"})
_TOP: Final = frozenset(
    {"segments", "device_traces", "allocator_settings", "external_annotations", DEVICE_NAMES}
)
_DEVICE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}(:\d{1,4})?")


def read_snapshot(path: str | os.PathLike[str], *, device: str = "cuda") -> Capture:
    """Return the capture of a file that torch's `_dump_snapshot()` wrote; nothing in it is run.

    Args:
        path: the file.
        device: the type of its devices, as `cuda` or `xpu`: the file numbers them and does not say.

    Raises:
        SnapshotError: there is no such file, it is no memory snapshot, or it holds more than plain data.
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
        if not isinstance(snapshot, dict) or not snapshot.keys() & {"segments", "device_traces"}:
            raise SnapshotError("it is not a memory snapshot: it lacks segments and device_traces")
        self._snapshot: dict[str, Any] = snapshot
        self._device_type, self._device_names = device_type, _device_names(snapshot)
        self.rows = Rows()
        self._entries = 0
        traces = lists(snapshot.get("device_traces", []), "device_traces", most=MOST_DEVICES)
        self._traces = [list(self._counted(dicts(trace, "entries"))) for trace in traces]
        self.times: Times = times_of(self._traces)
        self._lives: dict[int, life.Lives] = {}
        self._told: dict[int, Told] = {}
        self._left_out: set[str] = set()

    def _counted(self, entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield entries until there are too many: a small file can name one list a thousand times."""
        for entry in entries:
            self._entries += 1
            if self._entries > MOST_ENTRIES:
                raise SnapshotError(
                    f"it has more than {MOST_ENTRIES:,} entries, segments and blocks; record less"
                )
            yield entry

    def capture(self, name: str) -> Capture:
        """Return the capture.

        Args:
            name: the file's name, for the notes.
        """
        for index, trace in enumerate(self._traces):
            if trace:
                self._history(index, trace)
        self._segments()
        self._annotations()
        self._left_out |= self._snapshot.keys() - _TOP
        for index, lives in self._lives.items():
            told, unheard = self._told[index], lives.unheard
            told.before = lives.before_count, lives.before_bytes
            if told.reserved.segments:
                told.unheard = len(unheard), sum(lives.sizes[each] for each in unheard)
        if sum(sum(lives.sizes.values()) for lives in self._lives.values()) > MOST:
            raise SnapshotError("its allocations add up to more than any machine has")
        devices = {self._device(index): told for index, told in sorted(self._told.items())}
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
        most = max(self._lives, key=lambda index: sum(self._lives[index].sizes.values()), default=0)
        meta["device"] = self._device(most)
        reserved = {index: told.reserved.reserved_bytes for index, told in sorted(self._told.items())}
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
        if index < len(self._device_names) and self._device_names[index]:
            return self._device_names[index]
        return (
            self._device_type if self._device_type == "cpu" and index == 0 else f"{self._device_type}:{index}"
        )

    def _lives_of(self, index: int, *, requests: bool = False) -> life.Lives:
        """Return the lives of a device, made at first sight."""
        if index not in self._lives:
            device = self.rows.text(self._device(index))
            self._lives[index] = life.Lives(self.rows, device, self.times.start_ns, requests)
            self._told[index] = Told()
        return self._lives[index]

    def _history(self, index: int, trace: list[dict[str, Any]]) -> None:
        requests = any(entry.get("action") == life.FREE_REQUESTED for entry in trace)
        lives, rows = self._lives_of(index, requests=requests), self.rows
        for entry, time_ns in zip(trace, self.times.of_device[index].tolist(), strict=True):
            action, nbytes = text(entry, "action"), integer(entry, "size", otherwise=0)
            is_oom = action == "oom"
            is_life = action in (life.ALLOC, life.FREE_REQUESTED, life.FREE_COMPLETED)
            address = (
                integer(entry, "device_free", otherwise=0)
                if is_oom
                else integer(entry, "addr", least=int(is_life), otherwise=None if is_life else 0)
            )
            storage = lives.follow(action, address, nbytes, time_ns)
            if is_oom:
                self._told[index].out_of_memory.append((nbytes, address))
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
        rows = self.rows
        segments = self._counted(dicts(self._snapshot.get("segments", []), "segments"))
        for number, segment in enumerate(segments):
            index = integer(segment, "device", most=MOST_DEVICES - 1, otherwise=0)
            lives, reserved = self._lives_of(index), self._told[index].reserved
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
                rows.optional_text(plain(segment, _SEGMENT, self._left_out)),
            )
            self._blocks(number, segment, lives, reserved)

    def _blocks(self, number: int, segment: dict[str, Any], lives: life.Lives, reserved: Reserved) -> None:
        address, rows = integer(segment, "address"), self.rows
        for block in self._counted(dicts(segment.get("blocks", []), "blocks")):
            address = integer(block, "address", otherwise=address)
            nbytes, state = integer(block, "size"), text(block, "state")
            requested, frames = _asked_for(block)
            asked = nbytes if requested == NONE else requested
            storage = NONE
            if state == _ALLOCATED:
                storage = lives.in_block(address, asked)
            elif state in _WAITING:
                storage = lives.waiting_in(address)
            reserved.add_block(nbytes, asked, allocated=state == _ALLOCATED, waiting=state in _WAITING)
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


def _asked_for(block: dict[str, Any]) -> tuple[int, object]:
    """Return the bytes that the program asked for, -1 if they are not known, and the frames of its call."""
    history = block.get("history")
    if "frames" not in block and history:  # as torch 1.13 and 2.0 wrote it
        for latest in dicts(history, "history"):
            return integer(latest, "real_size", otherwise=NONE), latest.get("frames")
    return integer(block, "requested_size", otherwise=NONE), block.get("frames")


def _device_names(snapshot: dict[str, Any]) -> list[str]:
    """Return the names that memwatch gave to the devices of a snapshot, by number; what torch wrote has none."""
    names = snapshot.get(DEVICE_NAMES)
    if not isinstance(names, list) or len(names) > MOST_DEVICES:
        return []
    known = [name if type(name) is str and _DEVICE_NAME.fullmatch(name) else "" for name in names]
    return known if any(known) else []
