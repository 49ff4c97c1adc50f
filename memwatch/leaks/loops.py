"""Find the loop of references that keeps an unreachable storage alive, and the references whose cut ends all loops."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from functools import cached_property
from types import CellType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.heap.classes import class_ids, is_a
from memwatch.heap.frames import is_import
from memwatch.heap.paths import steps_of
from memwatch.heap.search import search
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.cause import cycle_key, edge_to_cut, edit_of, edit_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence

    import networkx as nx

    from memwatch.heap.paths import Step
    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot

# Objects that all keep each other alive, and the loops of references among them, each looked for once.

_MOST_LOOPS: Final = 16
"""Loops told apart among objects that all keep each other alive. What hangs on more loops is reported with one of
these. A guess."""


class Component:
    """Objects each of which leads to every other. Any loop through one of them consists of these objects.

    Args:
        members: the objects, as positions.
        references: the references among them, each as owner and target, in the order in which to try them.
    """

    def __init__(self, members: Iterable[int], references: Iterable[tuple[int, int]]) -> None:
        self._following: dict[int, list[int]] = {member: [] for member in members}
        for owner, target in references:
            self._following[owner].append(target)
        self._seen = KnownLoops()
        self._unseen = KnownLoops()

    def known(self, *, unseen: bool) -> KnownLoops:
        """Return the loops found so far; on request those through a reference that gc does not see."""
        return self._unseen if unseen else self._seen

    def references(self) -> Iterator[tuple[int, int]]:
        """Yield the references among the objects."""
        for owner, targets in self._following.items():
            yield from ((owner, target) for target in targets)

    def places(self) -> Iterable[int]:
        """Return the objects."""
        return self._following.keys()

    def __len__(self) -> int:
        return len(self._following)

    @property
    def is_one_loop(self) -> bool:
        """Whether there is one loop among the objects and no other."""
        return all(len(targets) == 1 for targets in self._following.values())

    def loop_without(
        self,
        removed: Container[tuple[int, int]],
        preferred: Iterable[int],
        *,
        through: Iterable[tuple[int, int]] | None = None,
    ) -> list[int]:
        """Return a loop that remains without some references, with its start repeated at the end, or an empty list.

        Args:
            removed: the references, each as owner and target.
            preferred: objects to start at if they are in a loop: the objects of an earlier loop.
            through: references of which the loop must contain one; any loop will do by default.
        """
        import networkx as nx

        left = Component(self._following, (each for each in self.references() if each not in removed))
        graph = nx.DiGraph(left.references())
        members: dict[int, int] = {}
        for number, places in enumerate(nx.strongly_connected_components(graph)):
            if len(places) > 1 or all(graph.has_edge(place, place) for place in places):
                members.update(dict.fromkeys(places, number))
        if through is not None:
            ends = (each for each in through if each not in removed)
            inside = ((a, b) for a, b in ends if a in members and members[a] == members.get(b))
            return next((left.shortest_loop(owner, target) for owner, target in inside), [])
        start = next((place for place in preferred if place in members), min(members, default=None))
        return [] if start is None else left.shortest_loop(start)

    def shortest_loop(self, start: int, second: int | None = None) -> list[int]:
        """Return the shortest loop from an object, by way of a second one if given; its start repeated at the end."""
        following = self._following[start] if second is None else [second]
        if start in following:
            return [start, start]
        towards = dict.fromkeys(following, start)
        front = list(towards)
        while front:
            fresh: dict[int, int] = {}
            for node in front:
                for target in self._following[node]:
                    if target == start:
                        return [start, *_back(towards, node, start), start]
                    if target not in towards and target not in fresh:
                        fresh[target] = node
            towards.update(fresh)
            front = list(fresh)
        return []


class KnownLoops:
    """The loops that were found among some objects.

    A loop that passes through an object keeps it alive, so none is looked for from there again.

    Attributes:
        rings: the loops, each as positions, the first one not repeated.
    """

    def __init__(self) -> None:
        self.rings: list[list[int]] = []
        self._by_place: dict[tuple[int, ...], int] = {}
        self._chain_to: Callable[[int], list[int]] | None = None

    def add(self, ring: list[int]) -> int:
        """Take a loop and return its number."""
        number = len(self.rings)
        self.rings.append(ring)
        for place, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            self._by_place.setdefault((place,), number)
            self._by_place.setdefault((place, following), number)
        return number

    def through(self, *places: int) -> int | None:
        """Return the number of a loop through an object, or through a reference given as owner and target."""
        return self._by_place.get(places)

    def are_enough(self) -> bool:
        """Return True if no other loop is worth its search."""
        return len(self.rings) >= _MOST_LOOPS

    def chain_to(self, place: int, search: Callable[[list[int]], Callable[[int], list[int]]]) -> list[int]:
        """Return the shortest chain from a known loop to an object; the search is made once."""
        if self._chain_to is None:
            self._chain_to = search([place for ring in self.rings for place in ring])
        return self._chain_to(place)


def _back(towards: dict[int, int], node: int, start: int) -> list[int]:
    way = [node]
    while towards[way[-1]] != start:
        way.append(towards[way[-1]])
    return way[::-1]


# Find the references to cut so that no loop is left among objects that all lead to one another.
#
# Two loops may share an object: a trainer has two loops, and each of them has the trainer. To cut one reference then
# frees nothing. One line of the program may make many references, so what counts is how many edits it takes.

MOST_OBJECTS: Final = 5_000
"""In a larger group of objects that refer to each other only the nearest loop is reported. Lightning has about 600."""
_MOST_RINGS: Final = 32
"""Loops that are searched, a guess. Lightning's trainer has more, so its cuts are reported as the first of several."""


class CutSet(NamedTuple):
    """The references that end the loops among some objects.

    Attributes:
        cuts: one reference for each edit, the one that ends most loops first.
        main: the loop of the first reference.
        is_complete: False if further loops were not searched.
    """

    cuts: tuple[Step, ...]
    main: list[Step]
    is_complete: bool

    @property
    def edits(self) -> frozenset[Hashable]:
        """The edits that the references stand for."""
        return frozenset(edit_of(step.edge) for step in self.cuts)


@dataclass(slots=True)
class Ring:
    """One loop: its positions, the first one repeated at the end, and its references."""

    positions: list[int]
    steps: list[Step]

    def editable(self) -> dict[Hashable, Step]:
        """Return the references that are as easy to edit as any of this loop, by the edit each stands for."""
        best = min(map(edit_rank, self.steps))
        return {edit_of(step.edge): step for step in self.steps if edit_rank(step) == best}

    def references(self, edits: Collection[Hashable]) -> Iterable[tuple[int, int]]:
        """Yield the references that some edits remove, each as owner and target."""
        for step in self.steps:
            if edit_of(step.edge) in edits:
                # the dictionary has the value, and several functions may have one cell
                is_cell = step.edge.kind is EdgeKind.CLOSURE_CELL and step.end - step.start > 1
                end = step.end - is_cell
                yield self.positions[end - 1], self.positions[end]


def find_cuts(
    component: Component,
    first: list[int],
    name: Callable[[list[int]], Ring],
    *,
    through: Collection[tuple[int, int]] | None = None,
    known: Sequence[frozenset[Hashable]] = (),
) -> CutSet:
    """Find the fewest edits that end all loops of a component, as far as a few loops show.

    Args:
        component: the objects.
        first: one loop among them, as positions, the first one repeated at the end.
        name: returns the references of a loop.
        through: only loops with one of these references count; by default all loops count.
        known: edits that ended the loops of other components, tried first, so that equal objects have equal cuts.
    """
    rings = [name(first)]
    while True:
        edits = _hitting(rings, known)
        removed = {reference for ring in rings for reference in ring.references(edits)}
        loop = component.loop_without(removed, first, through=through)
        if not loop or len(rings) >= _MOST_RINGS:
            return _cut_set(rings, edits, is_complete=not loop)
        rings.append(name(loop))


def _hitting(rings: Sequence[Ring], known: Iterable[frozenset[Hashable]]) -> set[Hashable]:
    """Return a small set of edits that contains one edit of each loop."""
    for edits in known:
        hits = [{edit_of(step.edge) for step in ring.steps} & edits for ring in rings]
        if all(hits):
            return set().union(*hits)
    todo = [ring.editable() for ring in rings]
    chosen: set[Hashable] = set()
    while todo:
        counts = Counter(edit for ring in todo for edit in ring)
        steps = {edit: step for ring in todo for edit, step in ring.items()}
        best = min(counts, key=lambda edit: (-counts[edit], edit_rank(steps[edit]), repr(edit)))
        chosen.add(best)
        todo = [ring for ring in todo if best not in ring]
    return chosen


def _cut_set(rings: Sequence[Ring], edits: Collection[Hashable], *, is_complete: bool) -> CutSet:
    found: dict[Hashable, list[tuple[Step, Ring]]] = {}
    for ring in rings:
        for step in ring.steps:
            if edit_of(step.edge) in edits:
                found.setdefault(edit_of(step.edge), []).append((step, ring))
    order = sorted(found, key=lambda edit: (-len(found[edit]), edit_rank(found[edit][0][0]), repr(edit)))
    main = min((ring for _, ring in found[order[0]]), key=lambda ring: len(ring.steps))
    return CutSet(tuple(found[edit][0][0] for edit in order), main.steps, is_complete)


_MAX_ANCESTORS: Final = 20_000
"""Objects above a survivor that a search for loops passes. A guess."""
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

    Objects of memwatch and of the test runner count as neither owners nor parts of a loop. The program is not
    responsible for the memory that they hold.

    Args:
        snapshot: the open graph.
        reached: the search from all roots.
    """

    def __init__(self, snapshot: Snapshot, reached: Tree) -> None:
        self._snapshot = snapshot
        self._reached = reached
        of_tools = np.zeros(len(reached.reached), dtype=bool)
        of_tools[list(snapshot.barriers())] = True
        self._held_by_tools = search(snapshot, [np.flatnonzero(of_tools & ~reached.reached)])
        self._starts, self._referrers = snapshot.reversed(~(reached.reached | of_tools))
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

    def is_of_tools(self, position: int) -> bool:
        """Return True if an object hangs on no loop of the program, but on an object of a tool."""
        return self._held_by_tools.reaches(position) and not self.find(position)[0].positions

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
        """Return the components that lead to some objects, nearest first, as far as the search may still go.

        A loop behind a call of the import system is excused, so the search goes no further there.
        """
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
            if is_import(self._snapshot.objects[node]):
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
