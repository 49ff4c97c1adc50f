"""Uses: between which ops each allocation was needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


class UseBounds(NamedTuple):
    """Per allocation: the first and the last op that used it, -1 if none did. The op that made it does not count."""

    first_op: IntArray
    last_op: IntArray


def use_bounds(capture: Capture, allocations: Allocations) -> UseBounds:
    """Return the first and last op that read or wrote each allocation. Backward reads the tensors that it unpacks."""
    count = len(allocations)
    first, last = np.full(count, np.iinfo(np.int32).max, np.int32), np.full(count, NONE, dtype=np.int32)
    uses = capture.tables["uses"]
    touched = uses["access"] != ACCESSES.index("output")
    unpacked_storages, unpacking_ops = _unpacked(capture)
    for storages, ops in (
        (uses["storage"][touched], uses["op"][touched]), (unpacked_storages, unpacking_ops),
    ):  # fmt: skip
        np.minimum.at(first, storages, ops.astype(np.int32, copy=False))
        np.maximum.at(last, storages, ops.astype(np.int32, copy=False))
    later = allocations.is_later_block
    first[later], last[later] = first[allocations.storage[later]], last[allocations.storage[later]]
    return UseBounds(np.where(last == NONE, NONE, first), last)


def _unpacked(capture: Capture) -> tuple[IntArray, IntArray]:
    """Return the storages that backward unpacked, and the op that read each."""
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    storage_of = np.full(int(packs["pack"].max(initial=-1)) + 2, NONE, dtype=np.int64)
    storage_of[packs["pack"]] = packs["storage"]
    storage = storage_of[unpacks["pack"]]
    read = (unpacks["released"] == 0) & (storage != NONE)
    return storage[read], np.minimum(unpacks["op"][read], capture.rows("ops") - 1)


def sources_of(capture: Capture, ops: IntArray) -> dict[int, int]:
    """Return, for each of some ops that reads, a storage that it reads."""
    uses = capture.tables["uses"]
    rows = np.flatnonzero((uses["access"] == ACCESSES.index("read")) & np.isin(uses["op"], ops))
    return dict(zip(uses["op"][rows].tolist(), uses["storage"][rows].tolist(), strict=True))
