"""Retained bytes: the bytes that would be freed if one object or one reference were gone (dominators of a graph)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch.tensors import device_of
from memwatch.heap.search import search
from memwatch.heap.tensors import storage_bytes

if TYPE_CHECKING:
    from memwatch.heap.snapshot import Snapshot


def retained_bytes(
    snapshot: Snapshot, *, device: str, without: int | None = None, cut: tuple[int, int] | None = None
) -> int:
    """Count the bytes of a device's tensor storage that only one object, or one reference, keeps reachable.

    A storage counts if every path from every root passes there, which is to say that the object (or the reference)
    dominates it. Searching once more with it taken away answers exactly that for one object, in one sweep, where a
    dominator tree would answer for all at many times the cost.

    Args:
        snapshot: the open graph.
        device: the name of the device.
        without: position of the object taken away.
        cut: the reference taken away, as (parent, child) positions.

    Returns:
        Bytes of the storages that would be lost.
    """
    groups = snapshot.root_groups(runner=True)
    before = search(snapshot, groups)
    after = search(
        snapshot, groups, closed=() if without is None else (without,), cut=() if cut is None else (cut,)
    )
    lost = 0
    for storage in snapshot.storages():
        position = snapshot.position(storage)
        is_lost = before.reaches(position) and not after.reaches(position)
        if is_lost and str(device_of(storage)) == device:
            lost += storage_bytes(storage)
    return lost
