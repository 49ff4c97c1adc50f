"""Shortest paths over a snapshot: what the roots reach, and by which references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.ma  # np.unique imports it on its first call, which is the wrong moment

from memwatch.heap.snapshot import UNREACHED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from memwatch.heap.snapshot import Snapshot


class Tree:
    """The shortest-path tree of one breadth-first search.

    Attributes:
        above: for each position the position it was reached from; itself for a source, -1 if not reached.
    """

    def __init__(self, above: NDArray[np.int64]) -> None:
        self.above = above

    def reaches(self, position: int) -> bool:
        """Return True if the search came to this object."""
        return bool(self.above[position] != UNREACHED)

    def path(self, position: int) -> list[int]:
        """Return the positions from a source to this object, both included; empty if not reached."""
        if not self.reaches(position):
            return []
        path = [position]
        while self.above[path[-1]] != path[-1]:
            path.append(int(self.above[path[-1]]))
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
        sources: groups of positions to start from; a later group only adds what the earlier ones did not
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
    starts: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    sources: Iterable[Iterable[int]],
    *,
    closed: Collection[int] = (),
    allowed: NDArray[np.bool_] | None = None,
) -> Tree:
    """Search breadth-first over compressed neighbour lists, one array operation per level."""
    above = np.full(len(starts) - 1, UNREACHED, dtype=np.int64)
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
    starts: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    front: NDArray[np.int64],
    above: NDArray[np.int64],
    allowed: NDArray[np.bool_] | None,
) -> None:
    while front.size:
        lengths = starts[front + 1] - starts[front]
        edges = np.repeat(starts[front] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        parents = np.repeat(front, lengths)
        if allowed is not None:
            parents, edges = parents[allowed[edges]], edges[allowed[edges]]
        found = neighbours[edges]
        fresh = above[found] == UNREACHED
        found, first = np.unique(found[fresh], return_index=True)
        above[found] = parents[fresh][first]
        front = found
