"""Remember the causes that earlier checks found, so that a later check need not search the whole heap.

Only ids and keys are stored, so nothing is kept alive. An id may belong to another object by now. This is harmless,
because a cause counts only if each of its references can be followed again from a loaded module.

The values of names are remembered too. A variable that gets a tensor in one block may have held a number before; its
next value replaces this one. It grows only if the values of several blocks in a row are all alive, as in a chain of
nodes in which each refers to the previous one.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from memwatch._torch.tensors import use_count_of
from memwatch.heap.autograd import autograd_edges
from memwatch.heap.c_held import c_held_edges, keeps_in_c
from memwatch.heap.classes import is_a
from memwatch.heap.roots import Held, Root, RootKind
from memwatch.heap.tensors import TypeFilter, quiet
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks.excuses import Slots

if TYPE_CHECKING:
    import weakref
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from memwatch.leaks.leak import Leak, Survivor
    from memwatch.leaks.new_storages import NewStorage


_MOST: Final = 3
"""Blocks whose values a name may have kept: `previous, current = current, new` keeps two."""


class FilledNames:
    """The values that names took in, block by block; keeps none of them alive."""

    def __init__(self) -> None:
        self._values: dict[Hashable, list[list[weakref.ref[torch.UntypedStorage]]]] = {}

    def note(self, survivors: Sequence[Survivor]) -> list[Survivor]:
        """Note the survivors of a block. Return them, each with whether the next value of its name may replace it."""
        names: dict[Hashable, list[Survivor]] = {}
        for survivor in survivors:
            if _is_of_name(survivor):
                names.setdefault(survivor.holding[:2], []).append(survivor)
        replaceable: set[int] = set()
        for name, values in names.items():
            blocks = [refs for refs in self._values.get(name, []) if any(ref() is not None for ref in refs)]
            if len(blocks) < _MOST:
                replaceable.update(map(id, values))
            self._values[name] = [*blocks[-_MOST:], [survivor.storage.ref for survivor in values]]
        return [
            replace(each, may_be_replaced=True) if id(each) in replaceable else each for each in survivors
        ]


def _is_of_name(survivor: Survivor) -> bool:
    """Return True for the value of one name.

    A tensor in the value's graph does not count, because the graph grows with it.
    """
    if survivor.kind is not LeakKind.RETAINED or survivor.unreachable or survivor.cut is None:
        return False
    return survivor.cut.edge.kind.row.is_rebound and not survivor.through_graph


_MOST_WAYS: Final = 200
"""Ways that are remembered. With more of them, the oldest is forgotten. A guess."""
_MOST_WAYS_OF_KEEPERS: Final = 5_000
"""A model of a fixture has a way to each parameter, whose gradient a test may make. A guess."""


class KnownCauses:
    """The holders of earlier leaks, and the loops that kept others alive.

    Attributes:
        names: the names that got values in blocks.
        slots: lists whose items are known to have fixed places.
        told: by the name of a cause, the storages reported as kept by a live root.
    """

    def __init__(self) -> None:
        self._ways: dict[tuple[int, ...], None] = {}
        # by the name of a keeper: whether only the state of models was found at the end of a way
        self._ways_of_keepers: dict[str, dict[tuple[int, ...], bool]] = {}
        self._loops: set[object] = set()
        self._held_by_c: Counter[Hashable] = Counter()
        self.names = FilledNames()
        self.slots = Slots()
        self.told: dict[str, list[weakref.ref[torch.UntypedStorage]]] = {}

    def learn_way(self, objects: Sequence[Any]) -> None:
        """Remember the path from a root to the holder of a leak, if it can be followed again.

        A path through an optimizer cannot: whether its state is a leak depends on the living parameters.

        Args:
            objects: a root and the objects on the path from it, each older than the check.
        """
        root = objects[0]
        starts_at_module = len(objects) > 1 and type(root) is Root and root.kind is RootKind.MODULES
        if starts_at_module and not any(map(is_optimizer, objects)):
            self._ways[tuple(map(id, objects[1:]))] = None
            if len(self._ways) > _MOST_WAYS:
                del self._ways[next(iter(self._ways))]

    def learn_way_of_keeper(self, name: str, objects: Sequence[Any], *, is_state: bool) -> None:
        """Remember the path from a keeper to an older object that no root of the program reaches.

        Args:
            name: the name of the keeper.
            objects: the objects on the path, the keeper first, each older than the check.
            is_state: True if what the last one leads to is a parameter, a gradient or the state of an optimizer.
        """
        ways, way = self._ways_of_keepers.setdefault(name, {}), tuple(map(id, objects))
        if way in ways or len(ways) < _MOST_WAYS_OF_KEEPERS:
            ways[way] = is_state and ways.get(way, True)

    def learn_loops(self, survivors: Iterable[Survivor]) -> None:
        """Remember the loops through autograd that keep storages for ever."""
        looped = (survivor for survivor in survivors if survivor.kind is LeakKind.UNCOLLECTABLE)
        self._loops.update(survivor.key for survivor in looped)

    def learn_held_by_c(self, storages: Iterable[NewStorage]) -> None:
        """Remember the storages of one block that C++ alone holds, and that were not reported for that."""
        self._held_by_c |= Counter(map(_sort_in_c, storages))

    def are_held_by_c(self, storages: Iterable[NewStorage]) -> bool:
        """Return True if storages are of the same sorts as those that C++ held after one block, and no more of each.

        `torch.jit.trace` leaves two numbers in C++ on each call, for ever.
        """
        return Counter(map(_sort_in_c, storages)) <= self._held_by_c

    def note_told(self, leak: Leak, survivors: Iterable[Survivor]) -> None:
        """Remember the storages of a leak that a live root holds, weakly: it may let go of them yet."""
        if leak.kind is LeakKind.RETAINED:
            self.told.setdefault(leak.cause, []).extend(each.storage.ref for each in survivors)

    def freed(self) -> dict[str, list[int]]:
        """Return, by cause, how many of the reported storages are freed by now, and how many were reported."""
        return {cause: [sum(ref() is None for ref in refs), len(refs)] for cause, refs in self.told.items()}

    def has_loop(self, key: object) -> bool:
        """Return True if such a loop was found before."""
        return key in self._loops

    def walk(self) -> tuple[list[Root], list[object]]:
        """Return the root of the ways that still exist, and the objects along them; drop both soon."""
        if not self._ways:
            return [], []
        modules = {id(module): (name, module) for name, module in list(sys.modules.items())}
        root = Root(RootKind.MODULES)
        found: dict[int, object] = {}
        for way in self._ways:
            name, module = modules.get(way[0], ("", None))
            objects = [] if module is None else _walked(module, way)
            if objects:
                root.entries.append(Held(EdgeKind.MODULE, name, module))
                found.update((id(obj), obj) for obj in objects)
        return ([root], list(found.values())) if found else ([], [])

    def walk_keepers(self, keepers: Mapping[str, object]) -> WaysOfKeepers:
        """Return the ways from keepers that still exist; drop them soon."""
        found = WaysOfKeepers([], {}, set())
        for name, keeper in keepers.items():
            known = self._ways_of_keepers.get(name, {})
            root = Root(RootKind.CALLER, [Held(EdgeKind.ARGUMENT, name, keeper)], runner=True)
            entered: dict[tuple[int, int], object] = {}
            for way, is_state in known.items():
                objects = _walked(keeper, way, entered) if way[0] == id(keeper) else []
                found.objects.update((id(obj), obj) for obj in objects)
                if objects and is_state:
                    found.of_state.add(way[-1])
            if id(keeper) in found.objects:
                found.roots.append(root)
        return found


class WaysOfKeepers(NamedTuple):
    """The ways from keepers to the older objects that kept what earlier blocks made.

    Attributes:
        roots: a root for each keeper.
        objects: the objects along the ways, by `id`.
        of_state: the ids of the objects at whose end only the state of models was found.
    """

    roots: list[Root]
    objects: dict[int, object]
    of_state: set[int]


def _sort_in_c(made: NewStorage) -> Hashable:
    storage = made.ref()
    return made.size, made.site, made.caller, None if storage is None else use_count_of(storage)


def is_optimizer(obj: object) -> bool:
    """Return True for an optimizer, by its real type."""
    return is_a(obj, torch.optim.Optimizer)


def _walked(
    first: object, way: tuple[int, ...], entered: dict[tuple[int, int], object] | None = None
) -> list[object]:
    """Return the objects of a way from its first one on; none if it is broken.

    Args:
        first: the first object.
        way: the ids of all of them.
        entered: references that were followed before, by the ids of their ends; more are added.
    """
    objects = [first]
    entered = {} if entered is None else entered
    for wanted in way[1:]:
        reference = id(objects[-1]), wanted
        if reference not in entered:
            following = next((obj for obj in _referents(objects[-1]) if id(obj) == wanted), None)
            if following is None:
                return []
            entered[reference] = following
        objects.append(entered[reference])
    return objects


def _referents(obj: object) -> list[object]:
    found = gc.get_referents(obj)
    if TypeFilter()(obj):
        with quiet():
            found += [edge.target for edge in autograd_edges(obj)]
    if keeps_in_c(type(obj)):
        found += [edge.target for edge in c_held_edges(obj)]
    return found
