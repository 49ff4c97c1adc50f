"""A trace of one device for an allocator, and the allocator's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

IntArray = NDArray[np.signedinteger[Any]]

FREE: Final = -1
"""The size that marks a free."""
ANY_DEVICE_BYTES: Final = 1 << 50
"""The memory of a device that never fills up."""


class SettingsError(MemwatchError):
    """An allocator does not accept its settings."""


@dataclass(frozen=True)
class Trace:
    """The allocations and frees of one device in their order.

    Attributes:
        blocks: the allocation of each event, numbered from 0.
        sizes: the requested bytes of an allocation, `FREE` for a free.
        streams: the stream of an allocation, 0 for the default stream. A free belongs to its allocation's stream.
            Other numbers only distinguish streams. A private memory pool counts as a stream: its blocks serve no
            other pool.
    """

    blocks: IntArray
    sizes: IntArray
    streams: IntArray

    @classmethod
    def of_events(cls, events: Iterable[tuple[int, int, int]]) -> Trace:
        """Return a trace of (block, size, stream)."""
        rows = np.array(list(events), dtype=np.int64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(column) for column in rows.T))

    @classmethod
    def of_lives(
        cls, sizes: IntArray, births: IntArray, deaths: IntArray, streams: IntArray | None = None
    ) -> Trace:
        """Return the trace of allocations with times of birth and death. A negative death means "never freed".

        At equal times, frees come before allocations.
        """
        dies = np.flatnonzero(deaths >= 0)
        blocks = np.concatenate([np.arange(len(sizes)), dies])
        born = np.concatenate([np.ones(len(sizes), dtype=bool), np.zeros(len(dies), dtype=bool)])
        order = np.lexsort((born, np.concatenate([births, deaths[dies]])))
        blocks, born = blocks[order], born[order]
        stream = np.zeros(len(sizes), dtype=np.int64) if streams is None else streams
        return cls(blocks, np.where(born, sizes[blocks], FREE), np.where(born, stream[blocks], 0))

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def live_bytes(self) -> IntArray:
        """The requested bytes that are alive after each event: no allocator can reserve less."""
        asked = np.zeros(int(self.blocks.max(initial=-1)) + 1, dtype=np.int64)
        born = self.sizes != FREE
        asked[self.blocks[born]] = self.sizes[born]
        return np.cumsum(np.where(born, self.sizes, -asked[self.blocks]))


@dataclass(frozen=True)
class Outcome:
    """The result of a trace in an allocator.

    Attributes:
        settings: the allocator's settings, in the words of `PYTORCH_ALLOC_CONF`; "" for the default.
        reserved_bytes: bytes of segments after each event.
        allocated_bytes: bytes of blocks in use after each event.
        most_reserved_bytes: the most reserved bytes.
        retries: allocations that the device refused at first, so that the allocator released free segments.
        refused_event: the allocation that did not fit, which ends the trace; None if all allocations fitted.
    """

    settings: str
    reserved_bytes: IntArray
    allocated_bytes: IntArray
    most_reserved_bytes: int
    retries: int
    refused_event: int | None

    @property
    def fits(self) -> bool:
        """Whether every allocation fitted on the device."""
        return self.refused_event is None

    @property
    def most_allocated_bytes(self) -> int:
        """The most bytes of blocks that were handed out at once."""
        return int(self.allocated_bytes.max(initial=0))
