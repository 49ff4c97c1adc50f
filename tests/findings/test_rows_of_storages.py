"""A storage that is resized has several rows: a rule that knows the storage judges all of them."""

from __future__ import annotations

import torch

import memwatch


def test_all_rows_of_a_resized_storage_are_found():
    """As FSDP frees and fills its whole parameters."""
    x = torch.zeros(10_000)
    with memwatch.profile() as prof:
        made = x + 1
        made.untyped_storage().resize_(0)
        made.untyped_storage().resize_(40_000)
        made.zero_()
    allocations = prof._tables.facts.allocations
    (storage,) = allocations.storage[: allocations.named][allocations.op[: allocations.named] == 0]
    rows = allocations.rows_of([storage])
    assert len(rows) == 2
    assert allocations.nbytes[rows].tolist() == [40_000, 40_000]
    assert allocations.is_later_block[rows].tolist() == [False, True]
    assert not len(allocations.rows_of([]))
