"""Blocks: every stretch of memory the allocator handed out, from allocation to free.

The allocator's events are paired by address. A free on the host without its allocation is dropped: c10 remembers
the size of a block until it sees its free, so a block that it did not see is freed with the size of an older one at
that address. The allocator of an accelerator knows its blocks: such a free tells of one that was there at entry. An
allocation at an address that is still held means that the free was missed, so the older block ends
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


@dataclass(frozen=True)
class Blocks:
    """Blocks in order of allocation, as columns."""

    address: IntArray
    nbytes: IntArray
    device: IntArray
    thread: IntArray  # string id of the name of the thread that allocated, -1 for the one that recorded
    birth_ns: IntArray  # 0: it was there at entry
    death_ns: IntArray  # -1: never freed
    birth_order: (
        IntArray  # position among the allocator's events, which settles equal times; -1: there at entry
    )
    death_order: IntArray
    freed: NDArray[
        np.bool_
    ]  # whether the free was heard; else the block ends where its address is allocated again

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self.address)


def pair_events(capture: Capture) -> Blocks:
    """Pair the allocations and frees of a capture into blocks."""
    events = capture.tables["allocator"]
    before, after = _neighbours(events["device"], events["address"])
    is_birth = events["nbytes"] > 0
    freed_unborn = (events["nbytes"] < 0) & np.isin(events["device"], list(_with_books(capture)))
    freed_unborn &= ~np.append(is_birth, False)[before]
    birth = np.flatnonzero(is_birth | freed_unborn)
    at_entry = freed_unborn[birth]
    death = np.where(at_entry, birth, after[birth])
    times_ns, sizes = (np.append(events[name], NONE) for name in ("time_ns", "nbytes"))
    return Blocks(
        events["address"][birth],
        np.abs(events["nbytes"][birth]),
        events["device"][birth],
        np.where(at_entry, NONE, events["thread"][birth]),
        np.where(at_entry, 0, events["time_ns"][birth]),
        times_ns[death],
        np.where(at_entry, NONE, birth),
        death,
        (death != NONE) & (sizes[death] < 0),
    )


def _neighbours(device: IntArray, address: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each event, the one before it and the one after it at the same place; -1 for none."""
    # stable: events at one place stay in their order
    order = np.lexsort((address, device)).astype(np.int32)
    is_same = (np.diff(address[order]) == 0) & (np.diff(device[order]) == 0)
    before, after = (np.full(len(order), NONE, dtype=np.int32) for _ in range(2))
    before[order[1:][is_same]] = order[:-1][is_same]
    after[order[:-1][is_same]] = order[1:][is_same]
    return before, after


def _with_books(capture: Capture) -> set[int]:
    """Return string ids of the devices whose allocator said at entry what it had handed out."""
    known = capture.meta.get("entry_allocated_bytes", {})
    seen = np.unique(capture.tables["allocator"]["device"])
    return {number for number, name in zip(seen.tolist(), capture.text(seen), strict=True) if name in known}


def block_at(blocks: Blocks, address: IntArray, time_ns: IntArray) -> IntArray:
    """Return, for each address and time, the block that held the address then; -1 if none did.

    Args:
        blocks: the blocks.
        address: addresses, shape (n,).
        time_ns: times, nanoseconds, shape (n,).

    Returns:
        Block numbers, shape (n,).
    """
    if not len(blocks) or not len(address):
        return np.full(len(address), NONE, dtype=np.int64)
    _, codes = np.unique(np.concatenate([blocks.address, address]), return_inverse=True)
    times, ranks = np.unique(np.concatenate([blocks.birth_ns, time_ns]), return_inverse=True)
    keys = codes.astype(np.int64) * (len(times) + 1) + ranks
    block_keys, wanted = keys[: len(blocks)], keys[len(blocks) :]
    order = np.argsort(block_keys, kind="stable")
    position = np.searchsorted(block_keys[order], wanted, side="right") - 1
    candidate = order[np.maximum(position, 0)]
    holds: NDArray[np.bool_] = (
        (position >= 0)
        & (blocks.address[candidate] == address)
        & ((blocks.death_ns[candidate] == NONE) | (blocks.death_ns[candidate] >= time_ns))
    )
    return np.where(holds, candidate, NONE)
