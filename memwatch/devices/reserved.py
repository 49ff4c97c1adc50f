"""The memory that a caching allocator holds on a device: segments, and in them used and free blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALLOCATED: Final = "active_allocated"
WAITING: Final = ("active_pending_free", "active_awaiting_free")
"""Freed by the program, while a stream may still use them: torch has had both names."""


@dataclass
class Reserved:
    """The memory that an allocator holds on a device, in bytes.

    Attributes:
        segments: number of segments, which are stretches of device memory.
        reserved_bytes: bytes of all segments.
        allocated_bytes: bytes of the blocks in use.
        requested_bytes: bytes that the program requested for these blocks.
        waiting_bytes: bytes of freed blocks that a stream may still use.
        largest_free_bytes: bytes of the largest free block.
    """

    segments: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    requested_bytes: int = 0
    waiting_bytes: int = 0
    largest_free_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """The blocks that it could hand out."""
        return self.reserved_bytes - self.allocated_bytes - self.waiting_bytes

    def add_segment(self, nbytes: int) -> None:
        """Count a segment."""
        self.segments += 1
        self.reserved_bytes += nbytes

    def add_block(self, nbytes: int, requested: int, *, allocated: bool, waiting: bool) -> None:
        """Count a block of a segment."""
        if allocated:
            self.allocated_bytes += nbytes
            self.requested_bytes += requested
        elif waiting:
            self.waiting_bytes += nbytes
        else:
            self.largest_free_bytes = max(self.largest_free_bytes, nbytes)


def reserved_in(segments: Iterable[Mapping[str, Any]]) -> Reserved:
    """Return the figures of some segments, as `memory_snapshot()` of torch's modules lists them."""
    held = Reserved()
    for segment in segments:
        held.add_segment(segment["total_size"])
        for block in segment["blocks"]:
            state = block["state"]
            requested = block.get("requested_size", block["size"])
            held.add_block(block["size"], requested, allocated=state == ALLOCATED, waiting=state in WAITING)
    return held
