"""Shortest paths over a snapshot: the objects that the roots reach, and the references to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.ma

from memwatch._torch.tensors import device_of
from memwatch.heap.snapshot import UNREACHED
from memwatch.heap.tensors import storage_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from memwatch.heap.snapshot import Snapshot

_PIECE: Final = 50_000  # objects whose references are followed at a time; a guess


class Tree:
    """The shortest-path tree of one breadth-first search.

    Attributes:
        above: for each position, the position before it on its path: itself for a source, -1 if no path reaches it.
    """

    def __init__(self, above: NDArray[np.int32]) -> None:
        self.above = above

    @property
    def reached(self) -> NDArray[np.bool_]:
        """For each position whether the search came there."""
        reached: NDArray[np.bool_] = self.above != UNREACHED
        return reached

    def reaches(self, position: int) -> bool:
        """Return True if the search came to this object."""
        return bool(self.above[position] != UNREACHED)

    def path(self, position: int) -> list[int]:
        """Return the positions from a source to this object, both included; empty if not reached."""
        if not self.reaches(position):
            return []
        above = self.above.item  # faster than an index; thousands of paths may have hundreds of steps
        path = [position]
        while (owner := above(path[-1])) != path[-1]:
            path.append(owner)
        return path[::-1]


def search(
    snapshot: Snapshot,
    sources: Iterable[Iterable[int]],
    *,
    closed: Collection[int] = (),
    cut: Collection[tuple[int, int]] = (),
) -> Tree:
    """Search breadth-first from the sources along the references.

    Args:
        snapshot: the graph.
        sources: groups of positions to start from; a later group adds only objects that the earlier ones did not
            reach.
        closed: positions never entered.
        cut: references, as (parent, child) positions, never followed.

    Returns:
        The tree of shortest paths.
    """
    allowed = np.ones(len(snapshot.children), dtype=bool)
    for parent, child in cut:
        low, high = snapshot.starts[parent], snapshot.starts[parent + 1]
        allowed[low:high] &= snapshot.children[low:high] != child
    return spread(snapshot.starts, snapshot.children, sources, closed=closed, allowed=allowed)


def spread(
    starts: NDArray[np.int32] | NDArray[np.int64],
    neighbours: NDArray[np.int32],
    sources: Iterable[Iterable[int]],
    *,
    closed: Collection[int] = (),
    allowed: NDArray[np.bool_] | None = None,
) -> Tree:
    """Search breadth-first over compressed neighbour lists, one array operation per level."""
    above = np.full(len(starts) - 1, UNREACHED, dtype=np.int32)
    shut = np.fromiter(closed, dtype=np.int64)
    above[shut] = shut  # never entered: looks visited, and is undone at the end
    for group in sources:
        front = np.unique(np.fromiter(group, dtype=np.int64))
        front = front[above[front] == UNREACHED]
        above[front] = front
        _sweep(starts, neighbours, front, above, allowed)
    above[shut] = UNREACHED
    return Tree(above)


def _sweep(
    starts: NDArray[np.int32] | NDArray[np.int64],
    neighbours: NDArray[np.int32],
    front: NDArray[np.int64],
    above: NDArray[np.int32],
    allowed: NDArray[np.bool_] | None,
) -> None:
    while front.size:
        # A level may have most of the heap's references: they are followed piece by piece, for the arrays' sake.
        pieces = [front[begin : begin + _PIECE] for begin in range(0, len(front), _PIECE)]
        found = [_follow(starts, neighbours, piece, above, allowed) for piece in pieces]
        front = found[0] if len(found) == 1 else np.sort(np.concatenate(found))


def _follow(
    starts: NDArray[np.int32] | NDArray[np.int64],
    neighbours: NDArray[np.int32],
    front: NDArray[np.int64],
    above: NDArray[np.int32],
    allowed: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Enter the targets of some objects, and return the targets that are new, in order."""
    begins = starts[front].astype(np.int64)
    lengths = starts[front + 1] - begins
    edges = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    parents = np.repeat(front, lengths)
    if allowed is not None:
        parents, edges = parents[allowed[edges]], edges[allowed[edges]]
    found = neighbours[edges]
    fresh = above[found] == UNREACHED
    found, first = np.unique(found[fresh], return_index=True)
    above[found] = parents[fresh][first]
    return found.astype(np.int64)


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
