"""Words about the memory that an allocator reserves on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.devices.reserved import Reserved


class ReservedBytes(Protocol):
    """The memory that an allocator reserved on a device; see `memwatch.analysis.facts.reserved.ReservedBytes`."""

    @property
    def at_peak_bytes(self) -> int:
        """The reserved bytes at the peak."""

    @property
    def most_bytes(self) -> int:
        """The highest reserved bytes."""

    @property
    def live_at_peak_bytes(self) -> int:
        """The live part of the reserved bytes at the peak."""

    @property
    def free_at_peak_bytes(self) -> int:
        """The free part."""

    @property
    def largest_free_bytes(self) -> int | None:
        """The largest free piece, or None if it is unknown."""


def reserved_at_peak_text(held: ReservedBytes) -> str:
    """Return a clause: the reserved bytes at the peak and the free part of them."""
    pieces = (
        f" (the largest piece has {format_bytes(held.largest_free_bytes)})" if held.largest_free_bytes else ""
    )
    return (
        f"Reserved by its allocator at the peak: {format_bytes(held.at_peak_bytes)}, of which "
        f"{format_bytes(held.live_at_peak_bytes)} live and {format_bytes(held.free_at_peak_bytes)} free{pieces}; "
        f"at most {format_bytes(held.most_bytes)}"
    )


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
