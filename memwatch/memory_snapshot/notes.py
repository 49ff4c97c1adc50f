"""What an imported snapshot tells beside its tables: what it cannot know, what was reserved, where memory ran out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwatch.capture.capture import Note
from memwatch.device_names import is_host
from memwatch.devices.reserved import Reserved
from memwatch.sizes import format_bytes
from memwatch.words.allocators import counted, reserved_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass
class Told:
    """What is told of one device; pairs are a count and bytes.

    Attributes:
        reserved: what the allocator held at the end.
        out_of_memory: per time that memory ran out, the bytes asked for and those that the device had free.
        before: allocations that were freed in the history and began before it.
        unheard: allocations of the history that no entry ends, and that were gone at the end.
    """

    reserved: Reserved = field(default_factory=Reserved)
    out_of_memory: list[tuple[int, int]] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    unheard: tuple[int, int] = (0, 0)


def notes_of(
    name: str,
    unknown: Sequence[str],
    devices: Mapping[str, Told],
    left_out: Sequence[str],
    *,
    times_known: bool,
) -> list[Note]:
    """Return the notes of an import.

    Args:
        name: the file's name.
        unknown: what no snapshot knows.
        devices: what is told of each device.
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
    for device, told in devices.items():
        sentences += _of_device(device, told)
    if left_out:
        sentences.append(("left out", f"fields of the snapshot that were not kept: {', '.join(left_out)}"))
    return [Note(0, kind, text) for kind, text in sentences]


def _of_device(device: str, told: Told) -> Iterator[tuple[str, str]]:
    if told.reserved.segments and not is_host(device):
        yield "reserved", f"{device}: at the end {reserved_text(told.reserved)}"
    if told.out_of_memory:
        asked, free = (format_bytes(nbytes) for nbytes in told.out_of_memory[0])
        times = counted(len(told.out_of_memory), "time")
        text = f"{device}: memory ran out {times}; at first {asked} were requested while the device had {free} free"
        yield "out of memory", text
    if told.before[0]:
        text = (
            f"{device}: {_allocations(told.before)} began before the history does; they count as live at its start, "
            "and the calls that made them are not recorded"
        )
        yield "history", text
    if told.unheard[0]:
        text = (
            f"{device}: {_allocations(told.unheard)} were gone at the end without a free in the history; they count as "
            "live until its end"
        )
        yield "history", text


def _allocations(told: tuple[int, int]) -> str:
    count, nbytes = told
    return f"{counted(count, 'allocation')} of {format_bytes(nbytes)}"
