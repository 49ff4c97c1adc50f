"""Deaths: when the memory of each block was freed, whichever thread freed it.

A free in a log is exact. But c10 reports a free only to the log of the freeing thread, so another thread may free a
block without a record. The death of the storage's weak reference then gives the time: the C++ recorder notes it at
once, the Python recorder before its next op. The free cannot be later than the next allocation at the same address.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import BACKWARD, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.blocks import Blocks
    from memwatch.capture import Capture
    from memwatch.capture.packed import Columns, IntArray

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
    """Return the block of each storage; -1 if all earlier storages on the block were dead when it was first seen.

    Such a storage lies in memory that an unobserved thread allocated at the same address.

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

    If backward made a storage, the recorder may watch its first tensor only, and then its death is not recorded. Such
    a storage does not count if the recorder numbered the same memory again.

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
