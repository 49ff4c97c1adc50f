"""Blocks: every stretch of memory that the allocator handed out, from allocation to free.

The allocator's events are paired by address. On the host, a free without its allocation is dropped. c10 remembers the
size of a block until it sees the block's free. If c10 did not see the allocation, it frees the block with the size of
an older block at that address. The allocator of an accelerator knows its blocks, so such a free belongs to a block
that existed at entry. If an address is allocated while its block is still alive, the log missed the free, and the
older block ends at this event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_AT_ONCE: Final = 1 << 18
"""Storages whose blocks are searched together, so that the search takes little memory. A guess."""


@dataclass(frozen=True)
class Blocks:
    """Blocks in order of allocation, as columns."""

    address: IntArray
    nbytes: IntArray
    device: IntArray
    thread: IntArray  # string id of the name of the thread that allocated; -1: the thread that recorded
    birth_ns: IntArray  # 0: it existed at entry
    death_ns: IntArray  # -1: never freed
    # Positions among the allocator's events, which order events of the same time. -1: it existed at entry.
    birth_order: IntArray
    death_order: IntArray
    # Whether the log has the free. If not, the block ends when its address is allocated again.
    freed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.address)


def pair_events(capture: Capture) -> Blocks:
    """Pair the allocations and frees of a capture into blocks."""
    events = capture.tables["allocator"]
    before, after = _neighbours(events["device"], events["address"])
    nbytes = events["nbytes"]
    is_birth = nbytes > 0
    freed_unborn = (nbytes < 0) & np.isin(events["device"], list(_with_books(capture)))
    freed_unborn &= ~np.append(is_birth, False)[before]
    birth = np.flatnonzero(is_birth | freed_unborn).astype(np.int32)
    at_entry = freed_unborn[birth]
    death = np.where(at_entry, birth, after[birth])
    del before, after, is_birth, freed_unborn
    dies = death != NONE
    time_ns = events["time_ns"]
    return Blocks(
        events["address"][birth],
        np.abs(nbytes[birth]),
        events["device"][birth],
        np.where(at_entry, NONE, events["thread"][birth]),
        np.where(at_entry, 0, time_ns[birth]),
        np.where(dies, time_ns[death], NONE),
        np.where(at_entry, NONE, birth),
        death,
        dies & (nbytes[death] < 0),
    )


def _neighbours(device: IntArray, address: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each event, the one before it and the one after it at the same place; -1 for none."""
    count, devices = len(address), np.unique(device)
    keys = _numbered(np.unique(address), address)
    keys *= len(devices)
    keys += np.searchsorted(devices, device)
    _sort_within(keys)
    order, is_same = (keys % max(count, 1)).astype(np.int32), np.zeros(max(count - 1, 0), dtype=bool)
    keys //= max(count, 1)
    np.equal(keys[1:], keys[:-1], out=is_same)
    before, after = (np.full(count, NONE, dtype=np.int32) for _ in range(2))
    before[order[1:][is_same]] = order[:-1][is_same]
    after[order[:-1][is_same]] = order[1:][is_same]
    return before, after


def _numbered(known: IntArray, values: IntArray) -> NDArray[np.int64]:
    """Return the position of each value among the sorted known ones."""
    return np.searchsorted(known, values).astype(np.int64, copy=False)


def _sort_within(groups: NDArray[np.int64]) -> None:
    """Turn numbers of groups, row by row, into sorted numbers `group * rows + row`, in place.

    A sort that gives an order beside it needs several times the memory, and a long run has millions of events.
    """
    groups *= len(groups)
    groups += np.arange(len(groups), dtype=np.int32)
    groups.sort()


def _with_books(capture: Capture) -> set[int]:
    """Return string ids of the devices whose allocator reported its bytes in use at entry."""
    known = capture.meta.get("entry_allocated_bytes", {})
    if not known:
        return set()
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
    found = np.full(len(address), NONE, dtype=np.int32)
    if not len(blocks):
        return found
    in_time = np.argsort(blocks.birth_ns, kind="stable").astype(np.int32)
    births_ns, places = blocks.birth_ns[in_time], np.unique(blocks.address)
    keys = _numbered(places, blocks.address[in_time])
    _sort_within(keys)
    for start in range(0, len(address), _AT_ONCE):
        here, now_ns = address[start : start + _AT_ONCE], time_ns[start : start + _AT_ONCE]
        # the last block at the address that was made by then, or any if there is none
        until = _numbered(places, here) * len(blocks) + np.searchsorted(births_ns, now_ns, side="right")
        position = np.searchsorted(keys, until) - 1
        candidate = in_time[keys[np.maximum(position, 0)] % len(blocks)]
        death_ns = blocks.death_ns[candidate]
        holds = (position >= 0) & (blocks.address[candidate] == here)
        holds &= (death_ns == NONE) | (death_ns >= now_ns)
        found[start : start + _AT_ONCE] = np.where(holds, candidate, NONE)
    return found
