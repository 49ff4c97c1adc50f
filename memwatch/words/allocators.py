"""Words about what an allocator holds of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.devices.reserved import Reserved


def reserved_text(held: Reserved) -> str:
    """Return a clause: what is reserved, and how much of it is handed out, waits or is free."""
    waiting = (
        f", {format_bytes(held.waiting_bytes)} still in use by another stream" if held.waiting_bytes else ""
    )
    return (
        f"{format_bytes(held.reserved_bytes)} were reserved in {counted(held.segments, 'segment')}: "
        f"{format_bytes(held.allocated_bytes)} allocated for the {format_bytes(held.requested_bytes)} that were "
        f"asked for{waiting}, {format_bytes(held.free_bytes)} free (the largest free block has "
        f"{format_bytes(held.largest_free_bytes)})"
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 segment`, `2 segments`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
