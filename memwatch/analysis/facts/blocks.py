"""Blocks: every stretch of memory that the allocator handed out, from allocation to free.

The allocator's events are paired by address. Two kinds of events have no partner:

- A free without an allocation. On an accelerator, the block existed at entry. On the host, the free is dropped, because
  its size may be wrong: c10 looks the size up by address, and may find that of an older block whose free it missed.
- An allocation at an address whose block is still alive. The log missed the free, and the older block ends here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import Columns, IntArray

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
    freed_unborn = (nbytes < 0) & np.isin(events["device"], list(_devices_with_entry_bytes(capture)))
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
    """Replace the group of each row by `group * rows + row`, and sort these numbers in place.

    A number gives both its group and its row. `argsort` would need several times the memory, and a long run has
    millions of events.
    """
    groups *= len(groups)
    groups += np.arange(len(groups), dtype=np.int32)
    groups.sort()


def _devices_with_entry_bytes(capture: Capture) -> set[int]:
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


# Deaths: when the memory of each block was freed, whichever thread freed it.
#
# A free in a log is exact. But c10 reports a free only to the log of the freeing thread, so another thread may free a
# block without a record. The death of the storage's weak reference then gives the time: the C++ recorder notes it at
# once, the Python recorder before its next op. The free cannot be later than the next allocation at the same address.
LIVES: Final = np.iinfo(np.int64).max
"""The time of a death that was not recorded."""
_CLOCKS_DIFFER_NS: Final = 5_000
"""The clocks of kineto and of the recorder differ by less. A logged free counts unless a death is this much earlier."""


def deaths_seen(capture: Capture, storages: int) -> IntArray:
    """Return when the weak reference of each storage died, `LIVES` if it did not, shape (storages,)."""
    rows = capture.tables["deaths"]
    died_ns = np.full(storages, LIVES, dtype=np.int64)
    died_ns[rows["storage"]] = rows["time_ns"]
    return died_ns


def part_from_successors(block_of: IntArray, seen_ns: IntArray, died_ns: IntArray) -> IntArray:
    """Return the block of each storage; -1 if it was first seen after all earlier storages on the block had died.

    Such a storage is not in the block: an unobserved thread has allocated other memory at the same address.

    Args:
        block_of: the block at the address of each storage, -1 if there is none, shape (storages,).
        seen_ns: when each storage was first seen, nanoseconds.
        died_ns: when each storage died, nanoseconds, `LIVES` if its death was not recorded.
    """
    counts = np.bincount(block_of + 1, minlength=1)
    counts[0] = 0  # no block
    parted: IntArray = block_of.copy()
    shared = np.flatnonzero(counts[block_of + 1] > 1)
    shared = shared[np.lexsort((seen_ns[shared], block_of[shared]))]
    block = last_ns = NONE
    columns = zip(
        shared.tolist(), *(each[shared].tolist() for each in (block_of, seen_ns, died_ns)), strict=True
    )
    for storage, here, seen, died in columns:
        if here != block:
            block, last_ns = here, died
        elif last_ns < seen:
            parted[storage] = NONE
        else:
            last_ns = max(last_ns, died)
    return parted


def last_deaths(capture: Capture, births: Columns, canonical: IntArray, died_ns: IntArray) -> IntArray:
    """Return, per storage, the last death among the storages on the same memory; `LIVES` if one of them lives.

    If a backward made a storage, the recorder may miss its death, because it may watch only the first tensor. If the
    recorder numbered the same memory again, such a storage does not count.

    Args:
        capture: the recorded tables.
        births: the table, in the order of the storages.
        canonical: the first storage on the same memory, per storage.
        died_ns: when each storage died, nanoseconds, `LIVES` if its death was not recorded.
    """
    again = canonical != np.arange(len(canonical))
    if not again.any():
        return died_ns
    phase = capture.tables["ops"]["phase"]
    by_op = births["op"] != NONE
    in_backward = np.zeros(len(canonical), dtype=bool)
    in_backward[by_op] = phase[births["op"][by_op]] == BACKWARD
    numbered_again = np.zeros(len(canonical), dtype=bool)
    numbered_again[canonical[again]] = True
    unwatched = (died_ns == LIVES) & in_backward & numbered_again[canonical]
    last_ns = np.full(len(canonical), NONE, dtype=np.int64)
    np.maximum.at(last_ns, canonical[~unwatched], died_ns[~unwatched])
    return np.where(last_ns == NONE, LIVES, last_ns)[canonical]


def end_blocks(blocks: Blocks, storage_of: IntArray, resizes: Columns, died_ns: IntArray) -> Blocks:
    """Return the blocks, each ended when it was freed.

    Args:
        blocks: blocks that end with a recorded free, or with the next allocation at the address.
        storage_of: the storage that lies in each block, -1 if none; a resized storage lies in several in turn.
        resizes: the recorded table, with the storages' canonical numbers.
        died_ns: when each storage died, nanoseconds, `LIVES` if its death was not recorded.
    """
    owned = storage_of != NONE
    seen_ns = np.full(len(blocks), LIVES, dtype=np.int64)
    seen_ns[owned] = died_ns[storage_of[owned]]
    seen_ns = np.minimum(seen_ns, _left_by_resize(blocks, storage_of, resizes))
    logged_ns = np.where(blocks.death_ns == NONE, LIVES, blocks.death_ns)
    unlogged = seen_ns < logged_ns - np.where(blocks.freed, _CLOCKS_DIFFER_NS, 0)
    return replace(
        blocks,
        death_ns=np.where(unlogged, seen_ns, blocks.death_ns),
        death_order=np.where(unlogged, NONE, blocks.death_order),
    )


def _left_by_resize(blocks: Blocks, storage_of: IntArray, resizes: Columns) -> IntArray:
    """Return, per block, when a resize gave its storage other memory; `LIVES` if none did."""
    left_ns = np.full(len(blocks), LIVES, dtype=np.int64)
    moves: dict[int, list[tuple[int, int]]] = {}
    columns = (resizes[name].tolist() for name in ("storage", "time_ns", "address"))
    for storage, time_ns, address in zip(*columns, strict=True):
        moves.setdefault(storage, []).append((time_ns, address))
    for block in np.flatnonzero(np.isin(storage_of, list(moves))).tolist():
        rows = moves[int(storage_of[block])]
        next_row = bisect_right(rows, (int(blocks.birth_ns[block]), LIVES))
        # the resize that made this block
        if next_row < len(rows) and rows[next_row][1] == blocks.address[block]:
            next_row += 1
        if next_row < len(rows):
            left_ns[block] = rows[next_row][0]
    return left_ns
