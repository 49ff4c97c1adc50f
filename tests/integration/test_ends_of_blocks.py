"""The ends of the allocator's blocks, from all recorded events."""

from __future__ import annotations

import numpy as np

from memwatch.analysis.facts.blocks import LIVES, Blocks, end_blocks, part_from_successors


def _column(*values):
    return np.array(values, dtype=np.int64)


def test_a_storage_on_memory_that_was_given_back_is_another():
    """If all earlier storages on a block are dead when a storage is first seen, no log has the block of the new one."""
    block_of = _column(0, 0, 0, 1)
    seen_ns, died_ns = _column(10, 20, 40, 15), _column(30, 25, LIVES, LIVES)
    assert part_from_successors(block_of, seen_ns, died_ns).tolist() == [0, 0, -1, 1]
    alias_lives = _column(LIVES, 25, LIVES, LIVES)
    assert part_from_successors(block_of, seen_ns, alias_lives).tolist() == [0, 0, 0, 1]


def test_a_block_ends_with_what_was_heard_first():
    """A logged free is exact. Otherwise the storage's death counts, and at the latest the next use of the address."""
    none = _column(-1, -1, -1, -1)
    blocks = Blocks(
        address=_column(1, 2, 3, 4), nbytes=_column(8, 8, 8, 8), device=_column(0, 0, 0, 0), thread=none,
        birth_ns=_column(0, 1, 2, 3), death_ns=_column(90_000, 90_000, 90_000, -1), birth_order=_column(0, 1, 2, 3),
        death_order=_column(7, 8, 9, -1), freed=np.array([True, False, False, False]),
    )  # fmt: skip
    resizes = {name: _column() for name in ("storage", "time_ns", "address")}
    died_ns = _column(90_010, 50_000, 95_000, 60_000)
    ended = end_blocks(blocks, _column(0, 1, 2, 3), resizes, died_ns)
    assert ended.death_ns.tolist() == [90_000, 50_000, 90_000, 60_000]
    assert ended.death_order.tolist() == [7, -1, 9, -1]
