"""Find the loop of references that keeps an unreachable storage alive."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from types import CellType
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.heap.class_checks import class_ids, is_a
from memwatch.heap.paths import steps_of
from memwatch.heap.search import search
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.components import Component
from memwatch.leaks.cut import cycle_key, edge_to_cut, edit_of
from memwatch.leaks.cut_sets import MOST_OBJECTS, Ring, find_cuts

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator

    import networkx as nx

    from memwatch.heap.paths import Step
    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot
    from memwatch.leaks.cut_sets import CutSet

_MAX_ANCESTORS: Final = 20_000
_MOST_STEPS: Final = 50_000
"""Objects that are passed in all on the way up from survivors to loops beyond the nearest: a guess."""
_INNER: Final = class_ids(dict, tuple, CellType)
"""Classes of objects inside others, which have no name of their own."""
_HALF_SEEN: Final = (EdgeKind.TENSOR_HOOKS, EdgeKind.ACCUMULATE_HOOKS)
"""References that gc follows only while nothing in C++ shares the tensor."""


def is_unseen(cycle: Iterable[Step]) -> bool:
    """Return True for a cycle with a reference that gc does not see, so that gc cannot free it."""
    return any(step.hidden or step.edge.kind in _HALF_SEEN for step in cycle)


class Loop:
    """A loop of references, with names that are made on first use.

    Attributes:
        positions: the objects in order, the first one repeated at the end; empty without a loop.
        is_told: whether the path from it to an object that hangs on it was named.
        cut_set: the references that end this loop and the others of its component. None for the only loop, or if no
            search was made.
    """

    def __init__(self, snapshot: Snapshot, positions: list[int], cut_set: CutSet | None = None) -> None:
        self._snapshot = snapshot
        self.positions = positions
        self.is_told = False
        self.cut_set = cut_set

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
        edits = frozenset() if self.cut_set is None else self.cut_set.edits
        return edge_to_cut([step for step in self.steps if edit_of(step.edge) in edits] or self.steps)

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for survivors that the same edits would free."""
        if self.cut_set is not None:
            return tuple(sorted(self.cut_set.edits, key=repr))
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
        self._components: dict[int, Component] = {}  # by each object in a loop
        # objects in loops to what refers to them unseen by gc, in the same loop
        self._hidden: dict[int, int] = {}
        self.are_young = True  # whether all that was found above the objects asked for is young
        self._loops: dict[tuple[int, ...], Loop] = {}  # by their positions
        # by whether loops unseen by gc count alone
        self._cut_sets: dict[tuple[Component, bool], CutSet | None] = {}
        self._edits: list[frozenset[Hashable]] = []  # those of the cut sets so far, the first one first
        self._upstream: dict[Component, list[Component]] = {}
        self._most_steps = _MOST_STEPS

    def find(self, position: int) -> tuple[Loop, list[int]]:
        """Find the loop nearest above an object, or an earlier found loop that it hangs on as well.

        Args:
            position: an object that no root reaches.

        Returns:
            The loop, and the chain of positions from the loop to the object. The loop is empty if there is none. The
            chain then starts at an object without a known referrer, or where the search ended.
        """
        self._explore(position)
        chain = self._way_down(position, self._components)
        start = chain[0]
        if start not in self._components:
            return Loop(self._snapshot, []), chain
        return self._loop((start,), chain, unseen=False)

    def find_unseen(self, position: int) -> tuple[Loop, list[int]] | None:
        """Find the nearest loop above an object that gc cannot free. Return it like `find`, or None.

        If a loop that gc sees hangs on a loop that gc does not see, only the latter needs a cut.

        Args:
            position: an object from an earlier call of `find`.
        """
        chain = self._way_down(position, self._hidden) if self._hidden else [position]
        if chain[0] not in self._hidden:
            return None
        return self._loop((self._hidden[chain[0]], chain[0]), chain, unseen=True)

    def _loop(self, begin: tuple[int, ...], chain: list[int], *, unseen: bool) -> tuple[Loop, list[int]]:
        """Return a loop with these objects, and a chain from one of them lengthened to a name."""
        component = self._components[begin[0]]
        known = component.known(unseen=unseen)
        number = known.through(*begin)
        if number is None and known.are_enough():
            chain = known.chain_to(chain[-1], self._chains_from)
            number = known.through(chain[0])
        if number is None:
            number = known.add(self._rotated(component.shortest_loop(*begin)[:-1]))
        ring = known.rings[number]
        loop = self._loops.get(tuple(ring))
        if loop is None:
            cut_set = self._cut_set(component, ring, unseen=unseen)
            loop = self._loops[tuple(ring)] = Loop(self._snapshot, [*ring, ring[0]], cut_set)
        return loop, self._from_a_name(ring, chain)

    def _cut_set(self, component: Component, ring: list[int], *, unseen: bool) -> CutSet | None:
        """Return the references to cut so that a component has no loop left.

        Return None if it has a single loop, if it is too large, or if it contains a class. A class leads to itself in
        several ways, which cannot be cut.

        Args:
            component: the objects.
            ring: a loop among them.
            unseen: True to count only loops that gc does not see.
        """
        key = component, unseen
        if key not in self._cut_sets:
            is_question = len(component) <= MOST_OBJECTS and not (
                component.is_one_loop or any(map(self._is_class, component.places()))
            )
            hidden = [(owner, target) for target, owner in self._hidden_in(component)] if unseen else None
            cut_set = (
                find_cuts(component, [*ring, ring[0]], self._named, through=hidden, known=self._edits)
                if is_question
                else None
            )
            if cut_set is not None and cut_set.edits not in self._edits:
                self._edits.append(cut_set.edits)
            self._cut_sets[key] = cut_set
        return self._cut_sets[key]

    def cuts_above(self, position: int) -> tuple[Step, ...]:
        """Return one reference for each edit that ends the loops above an object, as far as the search went.

        Args:
            position: an object from an earlier call of `find`.
        """
        cuts: dict[Hashable, Step] = {}
        for component in self._components_above([position]):
            if any(map(self._is_class, component.places())):
                continue
            known = component.known(unseen=False)
            ring = known.rings[0] if known.rings else component.loop_without((), ())[:-1]
            cut_set = self._cut_set(component, ring, unseen=False)
            cut = None if cut_set else edge_to_cut(self._named([*ring, ring[0]]).steps)
            for step in cut_set.cuts if cut_set else [cut] if cut else []:
                cuts.setdefault(edit_of(step.edge), step)
        return tuple(cuts.values())

    def _components_above(self, places: Iterable[int]) -> list[Component]:
        """Return the components that lead to some objects, nearest first, as far as the search may still go."""
        found: dict[Component, None] = {}
        todo = deque(places)
        seen = set(todo)
        while todo and self._most_steps > 0:
            self._most_steps -= 1
            node = todo.popleft()
            component = self._components.get(node)
            if component is not None:
                if component not in found:
                    found[component] = None
                    found.update(dict.fromkeys(self._above_component(component)))
                continue
            fresh = [above for above in self._above(node) if above not in seen]
            seen.update(fresh)
            todo += fresh
        return list(found)

    def _above_component(self, component: Component) -> list[Component]:
        if component not in self._upstream:
            self._upstream[component] = []
            inside = set(component.places())
            above = {place for node in inside for place in self._above(node)} - inside
            self._upstream[component] = self._components_above(sorted(above))
        return self._upstream[component]

    def _named(self, loop: list[int]) -> Ring:
        """Return a loop, given with its first object repeated at the end, with its references."""
        ring = self._rotated(loop[:-1])
        positions = [*ring, ring[0]]
        return Ring(positions, steps_of(self._snapshot, positions))

    def _is_class(self, position: int) -> bool:
        return is_a(self._snapshot.objects[position], type)

    def _chains_from(self, places: list[int]) -> Callable[[int], list[int]]:
        """Return what finds the shortest chain from some objects down to another that no root reaches."""
        reachable = np.flatnonzero(self._reached.reached)
        return search(self._snapshot, [places], closed=reachable).path

    def _explore(self, position: int) -> None:
        """Find out which of an object's ancestors are in loops. Ancestors with a known answer are skipped."""
        fresh = self._ancestors(position)
        is_all = len(fresh) < _MAX_ANCESTORS  # else more may be above them
        self.are_young = self.are_young and is_all and not self._snapshot.has_old(fresh)
        if is_all:
            self._explored.update(fresh)
        references = [(above, node) for node in fresh for above in self._above(node) if above in fresh]
        if not references:
            return
        import networkx as nx

        graph = nx.DiGraph(references)
        members: dict[int, int] = {}  # objects in loops, each with the number of its component
        loops = [each for each in nx.strongly_connected_components(graph) if _is_loop(graph, each)]
        for number, component in enumerate(loops):
            members.update(dict.fromkeys(component, number))
        inner: list[list[tuple[int, int]]] = [[] for _ in loops]
        for owner, target in references:
            if owner in members and members[owner] == members.get(target):
                inner[members[owner]].append((owner, target))
        for places, among in zip(loops, inner, strict=True):
            component = Component(places, among)
            self._components.update(dict.fromkeys(places, component))
            self._hidden.update(self._hidden_in(component))

    def _hidden_in(self, component: Component) -> Iterator[tuple[int, int]]:
        """Yield the references among some objects that gc does not see, each as target and owner."""
        for owner, target in component.references():
            edge = self._snapshot.native_edge(owner, target)
            if edge is not None and edge.hidden:
                yield target, owner

    def _rotated(self, ring: list[int]) -> list[int]:
        """Begin the loop at an object with a name of its own, not at a dictionary or tuple inside it."""
        first = next((n for n, place in enumerate(ring) if not self._is_inner(place)), 0)
        return [*ring[first:], *ring[:first]]

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
        return id(type(self._snapshot.objects[position])) in _INNER

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


def _is_loop(graph: nx.DiGraph, component: set[int]) -> bool:
    return len(component) > 1 or any(graph.has_edge(node, node) for node in component)
