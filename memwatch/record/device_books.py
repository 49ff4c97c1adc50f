"""The books of the accelerators' allocators: at entry, at the end, and whenever one has no memory left.

They count all memory of the process: what no tensor of Python's shows, too, and blocks as the allocator rounds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.device_names import is_host
from memwatch.devices import NOTE_KIND, adapter_of, devices_in_use
from memwatch.devices.reserved import reserved_in
from memwatch.signal_handlers import suppress
from memwatch.words.allocators import reserved_text

if TYPE_CHECKING:
    from collections.abc import Callable

ByDevice = dict[str, int]


class DeviceBooks:
    """Ask the adapters, and put what they say into the metadata of the recording.

    Args:
        note: keeps a sentence for the report.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._entry: dict[str, ByDevice] = {}
        self._end: dict[str, Any] = {}
        self._out_of_memory: ByDevice = {}

    def begin(self) -> None:
        """Read what is allocated and reserved when the block is entered."""
        devices = _accelerators()
        self._entry = {
            "entry_allocated_bytes": {name: adapter_of(name).allocated_bytes(name) for name in devices},
            "entry_reserved_bytes": {name: adapter_of(name).reserved_bytes(name) for name in devices},
            "rounding_bytes": {name: adapter_of(name).rounding_bytes for name in devices},
        }
        self._out_of_memory = _out_of_memory_counts()

    def op_failed(self) -> None:
        """Note what an allocator holds that had no memory left for the op that raised."""
        with suppress(Exception):  # the program's own error is on its way
            for name, count in _out_of_memory_counts().items():
                if count > self._out_of_memory.get(name, 0):
                    self._out_of_memory[name] = count
                    held = reserved_in(adapter_of(name).segments(name))
                    if held.segments:
                        self._note(NOTE_KIND, f"{name}: when memory ran out {reserved_text(held)}")

    def end(self) -> None:
        """Read what is reserved when the block ends."""
        devices = _accelerators()
        self._end = {
            "reserved_bytes": {name: adapter_of(name).reserved_bytes(name) for name in devices},
            "segments": {name: _extents(name) for name in devices},
        }

    @property
    def entry_bytes(self) -> ByDevice:
        """What was allocated when the block was entered."""
        return self._entry.get("entry_allocated_bytes", {})

    @property
    def meta(self) -> dict[str, Any]:
        """The entries of the recording's metadata."""
        return {**self._entry, **self._end}


def _accelerators() -> list[str]:
    return [name for name in devices_in_use() if not is_host(name)]


def _out_of_memory_counts() -> ByDevice:
    return {name: adapter_of(name).out_of_memory_count(name) for name in _accelerators()}


def _extents(name: str) -> list[tuple[int, int]]:
    """Return address and size of each segment."""
    return [(segment["address"], segment["total_size"]) for segment in adapter_of(name).segments(name)]
