"""Find the loop of references that keeps an unreachable storage alive."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from types import CellType
from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind
from memwatch.heap.paths import steps_of
from memwatch.leaks.cut import cycle_key, edge_to_cut

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Iterator

    import networkx as nx

    from memwatch.heap.paths import Step
    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot

_MAX_ANCESTORS: Final = 20_000
_HALF_SEEN: Final = (EdgeKind.TENSOR_HOOKS, EdgeKind.ACCUMULATE_HOOKS)
"""References that gc follows only while nothing in C++ shares the tensor."""


def is_unseen(cycle: Iterable[Step]) -> bool:
    """Return True for a cycle of which gc does not see every reference, and which it therefore cannot free."""
    return any(step.hidden or step.edge.kind in _HALF_SEEN for step in cycle)


class Loop:
    """A loop of references, and its names, which are made when they are first asked for.

    Attributes:
        positions: the objects in order, the first one repeated at the end; none if there is no loop.
    """

    def __init__(self, snapshot: Snapshot, positions: list[int]) -> None:
        self._snapshot = snapshot
        self.positions = positions

    @cached_property
    def steps(self) -> list[Step]:
        """The references."""
        return steps_of(self._snapshot, self.positions) if self.positions else []

    @cached_property
    def is_unseen(self) -> bool:
        """Whether gc does not see all of it."""
        return is_unseen(self.steps)

    @cached_property
    def cut(self) -> Step | None:
        """The reference to cut."""
        return edge_to_cut(self.steps)

    @cached_property
    def key(self) -> Hashable:
        """What is equal for the survivors that one edit of the loop would free."""
        return cycle_key(self.steps, self.cut) if self.cut else EdgeKind.C_CODE


class Loops:
    """The loops among the objects that no root reaches.

    Many objects hang on one loop, so what is above one of them is not looked at again for the next.

    Args:
        snapshot: the open graph.
        reached: the search from all roots.
    """

    def __init__(self, snapshot: Snapshot, reached: Tree) -> None:
        self._snapshot = snapshot
        self._reached = reached
        self._starts, self._referrers = snapshot.reversed(~reached.reached)
        self._explored: set[int] = set()
        self._graphs: dict[int, nx.DiGraph] = {}  # by each object in a loop: what is around it
        self._hidden: dict[
            int, int
        ] = {}  # objects in loops to what refers to them unseen by gc, in the same loop
        self._loops: dict[tuple[int, ...], Loop] = {}

    def find(self, position: int) -> tuple[Loop, list[int]]:
        """Find the loop nearest above an object.

        Args:
            position: an object that no root reaches.

        Returns:
            The loop, and the chain of positions from the loop to the object.
            The loop is empty if there is none; the chain then starts at an object nobody known refers to.
        """
        self._explore(position)
        chain = self._way_down(position, self._graphs)
        start = chain[0]
        if start not in self._graphs:
            return Loop(self._snapshot, []), chain
        return self._loop((start,), chain)

    def find_unseen(self, position: int) -> tuple[Loop, list[int]] | None:
        """Find the loop nearest above an object that gc cannot free; return it like `find`, or None.

        A loop that gc sees may hang on one that it does not: that one is then what has to be cut.

        Args:
            position: an object that `find` was asked for.
        """
        chain = self._way_down(position, self._hidden) if self._hidden else [position]
        if chain[0] not in self._hidden:
            return None
        return self._loop((self._hidden[chain[0]], chain[0]), chain)

    def _loop(self, begin: tuple[int, ...], chain: list[int]) -> tuple[Loop, list[int]]:
        """Return the shortest loop with these objects, and a chain from one of them lengthened to a name."""
        if begin not in self._loops:
            shortest = _shortest_loop(self._graphs[begin[0]], *begin)
            self._loops[begin] = Loop(self._snapshot, self._rotated(shortest))
        loop = self._loops[begin]
        return loop, self._from_a_name(loop.positions[:-1], chain)

    def _explore(self, position: int) -> None:
        """Find out which of an object's ancestors are in loops, but for those of which that is known."""
        import networkx as nx

        fresh = self._ancestors(position)
        graph = nx.DiGraph()
        graph.add_nodes_from(fresh)
        graph.add_edges_from((above, node) for node in fresh for above in self._above(node) if above in fresh)
        for component in nx.strongly_connected_components(graph):
            if len(component) > 1 or any(graph.has_edge(node, node) for node in component):
                self._graphs.update(dict.fromkeys(component, graph))
                self._hidden.update(self._hidden_in(graph, component))
        if len(fresh) < _MAX_ANCESTORS:  # else more may be above them
            self._explored.update(fresh)

    def _hidden_in(self, graph: nx.DiGraph, component: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the references among some objects that gc does not see, each as what it leads to and its owner."""
        for node in component:
            for above in component.intersection(graph.predecessors(node)):
                edge = self._snapshot.native_edge(above, node)
                if edge is not None and edge.hidden:
                    yield node, above

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

    def _ancestors(self, position: int) -> dict[int, None]:
        """Return an object and its unreachable ancestors, nearest first, without those explored before."""
        found = {} if position in self._explored else {position: None}
        front = list(found)
        while front and len(found) < _MAX_ANCESTORS:
            upper = dict.fromkeys(above for node in front for above in self._above(node))
            front = [above for above in upper if above not in found and above not in self._explored]
            found.update(dict.fromkeys(front))
        return found

    def _way_down(self, position: int, starts: Container[int]) -> list[int]:
        """Return the chain to an object from the nearest one of some, or else from its farthest ancestor."""
        towards = {position: position}
        todo = deque([position])
        node = position
        while todo:
            node = todo.popleft()
            if node in starts or len(towards) >= _MAX_ANCESTORS:
                break
            fresh = [above for above in self._above(node) if above not in towards]
            towards.update(dict.fromkeys(fresh, node))
            todo += fresh
        return _chain(towards, node)

    def _above(self, position: int) -> list[int]:
        """Return the unreachable objects that refer to one."""
        above = self._referrers[self._starts[position] : self._starts[position + 1]].tolist()
        return [place for place in above if place < self._snapshot.first_root]


def _chain(towards: dict[int, int], start: int) -> list[int]:
    chain = [start]
    while towards[chain[-1]] != chain[-1]:
        chain.append(towards[chain[-1]])
    return chain


def _shortest_loop(graph: nx.DiGraph, start: int, second: int | None = None) -> list[int]:
    """Return the shortest loop from an object, by way of a second one if given."""
    import networkx as nx

    if graph.has_edge(start, start) and second in (None, start):
        return [start, start]
    best: list[int] = []
    for after in graph.successors(start) if second is None else (second,):
        try:
            way = nx.shortest_path(graph, after, start)
        except nx.NetworkXNoPath:
            continue
        if not best or len(way) < len(best):
            best = way
    return [start, *best]
