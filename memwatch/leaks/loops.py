"""Find the loop of references that keeps an unreachable storage alive."""

from __future__ import annotations

from types import CellType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import networkx as nx
    import numpy as np
    from numpy.typing import NDArray

    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot

_MAX_ANCESTORS: Final = 20_000


class Loops:
    """The loops among the objects that no root reaches.

    Args:
        snapshot: the open graph.
        reached: the search from all roots.
    """

    def __init__(self, snapshot: Snapshot, reached: Tree) -> None:
        self._snapshot = snapshot
        self._reached = reached
        self._starts, self._referrers = snapshot.reversed(~reached.reached)

    def find(self, position: int) -> tuple[list[int], list[int]]:
        """Find the loop nearest above an object.

        Args:
            position: an object that no root reaches.

        Returns:
            The loop as positions, the first one repeated at the end, and the chain from the loop to the
            object.
            The loop is empty if there is none; the chain then starts at an object nobody known refers to.
        """
        import networkx as nx

        towards = self._ancestors(position)
        graph = nx.DiGraph()
        graph.add_nodes_from(towards)
        for node in towards:
            graph.add_edges_from((int(above), node) for above in self._above(node) if int(above) in towards)
        looped: set[int] = set()
        for component in nx.strongly_connected_components(graph):
            if len(component) > 1 or any(graph.has_edge(node, node) for node in component):
                looped |= component
        start = next((node for node in towards if node in looped), None)
        if start is None:
            return [], _chain(towards, list(towards)[-1])
        loop = self._rotated(_shortest_loop(graph, start))
        return loop, self._from_a_name(loop[:-1], _chain(towards, start))

    def _rotated(self, loop: list[int]) -> list[int]:
        """Begin the loop at an object with a name of its own, not at a dictionary or tuple inside it."""
        ring = loop[:-1]
        first = next((n for n, place in enumerate(ring) if not self._is_inner(place)), 0)
        return [*ring[first:], *ring[:first], ring[first]]

    def _from_a_name(self, ring: list[int], chain: list[int]) -> list[int]:
        """Lengthen the chain backwards along the loop until it begins at an object with a name of its own."""
        if all(map(self._is_inner, ring)):
            return chain
        for _ in ring:
            if not self._is_inner(chain[0]):
                break
            chain = [ring[ring.index(chain[0]) - 1], *chain]
        return chain

    def _is_inner(self, position: int) -> bool:
        return type(self._snapshot.objects[position]) in (dict, tuple, CellType)

    def _ancestors(self, position: int) -> dict[int, int]:
        """Map each unreachable ancestor, nearest first, to the next object on the way down."""
        towards = {position: position}
        front = [position]
        while front and len(towards) < _MAX_ANCESTORS:
            upper = []
            for node in front:
                for above in map(int, self._above(node)):
                    if (
                        above not in towards
                        and not self._reached.reaches(above)
                        and above < self._snapshot.first_root
                    ):
                        towards[above] = node
                        upper.append(above)
            front = upper
        return towards

    def _above(self, position: int) -> NDArray[np.int32]:
        return self._referrers[self._starts[position] : self._starts[position + 1]]


def _chain(towards: dict[int, int], start: int) -> list[int]:
    chain = [start]
    while towards[chain[-1]] != chain[-1]:
        chain.append(towards[chain[-1]])
    return chain


def _shortest_loop(graph: nx.DiGraph, start: int) -> list[int]:
    import networkx as nx

    if graph.has_edge(start, start):
        return [start, start]
    best: list[int] = []
    for after in graph.successors(start):
        try:
            way = nx.shortest_path(graph, after, start)
        except nx.NetworkXNoPath:
            continue
        if not best or len(way) < len(best):
            best = way
    return [start, *best]
