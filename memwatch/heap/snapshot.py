"""The graph of references of the whole process at one instant, as numpy arrays.

A call to gc for each object would be too slow, so each call returns the references of many objects.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch.gc_pause import pause_gc, resume_gc
from memwatch.heap.autograd import NativeEdge, autograd_edges, seen_through
from memwatch.heap.c_held import Unlisted, c_held_edges, keeps_in_c, shared_memory_edges, untracked
from memwatch.heap.classes import Classes, are_all_among, derives, identities, ids_of, of_classes
from memwatch.heap.frames import is_own_code, is_test_runner_code, without_empty_dictionaries
from memwatch.heap.roots import (
    SHOWS_CALLBACKS_AT_EXIT,
    Held,
    Root,
    RootKind,
    callbacks_at_exit,
    find_roots,
    is_tool_class,
    is_tool_module,
    may_answer,
)
from memwatch.heap.tensors import Capsule, TypeFilter, is_node_type, is_storage, quiet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from memwatch.kinds.edges import Edge


@dataclass(slots=True)
class Referents:
    """The references of some objects (the owners), in the order of the owners. It holds the targets, so drop it soon.

    Attributes:
        counts: number of references of each owner.
        ids: the id of each target.
        objects: the targets. There may be a mark after the targets of each owner.
        places: the position of each target in `objects`, without the marks.
    """

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    objects: list[Any]
    places: NDArray[np.int64]

    def at(self, which: NDArray[np.int64]) -> Sequence[Any]:
        """Return some targets, by their positions in `ids`."""
        places = self.places[which].tolist()
        return itemgetter(*places)(self.objects) if len(places) > 1 else [self.objects[at] for at in places]


def referents_of(part: list[Any], mark: tuple[object]) -> Referents:
    """List the references of some objects.

    A call to gc for each object would take longer than the rest of the snapshot. So one call lists the references of
    many objects, with a mark after each object. gc lists the mark's item after the references of the object, and so
    shows where they end.

    Args:
        part: the objects.
        mark: a tuple of one new object, to which only this tuple refers.
    """
    marked = [mark] * (2 * len(part))
    marked[::2] = part
    near = gc.get_referents(*marked)
    ids = ids_of(near)
    is_end = ids == id(mark[0])
    ends = np.flatnonzero(is_end)
    if len(ends) == len(part):
        places = np.flatnonzero(~is_end)
        return Referents(np.diff(ends, prepend=-1) - 1, ids[places], near, places)
    each = [gc.get_referents(obj) for obj in part]  # the program refers to the mark's item: list each alone
    near = list(chain.from_iterable(each))
    counts = np.fromiter(map(len, each), dtype=np.int64)
    return Referents(counts, ids_of(near), near, np.arange(len(near)))


UNREACHED: Final = -1  # the position of an object that no source reaches
_MEASURE: Final[object] = type("Measure", (), {})()  # gc lists an object of a class written in Python
_CHUNK: Final = 4_000  # objects whose references are listed at a time: few enough for the processor's cache
_POSITION: Final = np.int32  # half of int64; a heap with 2**31 references would take 16 GiB for them alone


class Snapshot:
    """All objects and references of the process, from gc, from autograd's C++ code and from the roots.

    An object's number is its position in `objects`. The snapshot is a context manager that holds every object it
    lists. Close it soon: until then, no object that the program drops is freed.

    Args:
        extra: objects to list even if gc does not show them.
        held: objects of the caller. They count as a root of the program.
        deep: whether to list numpy arrays too, and the tuples and dictionaries around them that gc does not track. The
            snapshot then takes 1.5 times as long.
        roots: the roots to use instead of the roots of the process. Then only gc's youngest generation is listed.
        more_roots: further roots, such as the calls that an error ended.
        young: the sorted ids of the young objects; by default, `old` decides.
        old: identities of the old objects (`heap.classes.identities`); all other objects are young. By default the
            objects of gc's youngest generation are young.
    """

    def __init__(
        self,
        extra: Iterable[object] = (),
        held: Iterable[Held] = (),
        *,
        deep: bool = False,
        roots: list[Root] | None = None,
        more_roots: Iterable[Root] = (),
        young: NDArray[np.int64] | None = None,
        old: NDArray[np.int64] | None = None,
    ) -> None:
        self.objects: list[Any] = []
        self.roots: list[Root] = []
        self._extra: list[Any] = []
        self._native: dict[tuple[int, int], NativeEdge] = {}
        # a collection now would run the program's finalizers, and take longer than the snapshot
        pause = pause_gc()
        try:
            self._list(extra, young_only=roots is not None)
            self.young = self._young_ids(old) if young is None else young
            self.roots = find_roots(self.of_types) if roots is None else roots
            self.roots += more_roots
            self.roots += [Root(RootKind.CALLER, entries)] if (entries := list(held)) else []
            self._build(deep=deep, all_roots=roots is None)
        except BaseException:
            # For example, memory ran out. `objects` contains frames that refer to the snapshot. Without `close` this
            # cycle would stay until gc runs, but a second, smaller search needs the memory now.
            self.close()
            raise
        finally:
            resume_gc(pause)

    def _list(self, extra: Iterable[object], *, young_only: bool) -> None:
        """List the objects that gc shows."""
        listed = gc.get_objects(0) if young_only else gc.get_objects()
        self.objects = without_empty_dictionaries(listed)
        del listed
        if not young_only:
            self.objects += without_empty_dictionaries(_frozen(self.objects, ours=[self.objects]))
        self._extra = list(extra)
        self.objects += self._extra
        self._classes = Classes(self.objects)
        self._index()

    def _build(self, *, deep: bool, all_roots: bool) -> None:
        """Add objects that only C code holds, and the roots. List the references of all objects."""
        self.named: dict[tuple[int, int], Edge] = {}  # by owner and target: edges named so far
        self.first_gc_end = len(self.objects)
        self._is_short_cut = self._short_cuts()
        unlisted = Unlisted() if deep else None
        lists = [] if unlisted is None else self._references(0, self.first_gc_end, unlisted)
        hidden = [*self._autograd(), *self._c_held(unlisted)]
        self.first_root = len(self.objects)
        self._index_rest(self.first_gc_end)
        lists += self._references(self.first_gc_end if lists else 0, self.first_root)
        if all_roots and (
            SHOWS_CALLBACKS_AT_EXIT or not self._may_callback_answer([children for _, children in lists])
        ):
            self.roots.append(callbacks_at_exit())
        self.objects += self.roots
        lists.append(self._of_roots())
        lengths, children = (np.concatenate(arrays) for arrays in zip(*lists, strict=True))
        lists.clear()  # the parts take as much memory as the two arrays
        owners = self._find(ids_of(parent for parent, _ in hidden))
        ids = ids_of(child for _, child in hidden)
        if unlisted is not None:
            more_owners, more_ids = unlisted.references()
            owners, ids = np.concatenate([owners, more_owners]), np.concatenate([ids, more_ids])
        self.starts, self.children = self._with_more(lengths, children, owners, self._find(ids))

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every object."""
        for root in self.roots:
            root.entries.clear()
        self.roots.clear()
        self.objects.clear()
        self._native.clear()
        self._extra.clear()
        if (classes := vars(self).get("_classes")) is not None:  # None if memory ran out before
            classes.by_id.clear()

    def _autograd(self) -> list[tuple[object, object]]:
        """Return the C++ references of all tensors and nodes. Add the targets that gc does not list to `objects`."""
        wanted = TypeFilter()
        todo = self.of_types(lambda cls: is_node_type(cls) or derives(cls, torch.Tensor))
        edges: list[tuple[object, object]] = []
        added: set[int] = set()
        with quiet():
            while todo:
                near = [(parent, edge) for parent in todo for edge in seen_through(autograd_edges(parent))]
                todo = []
                unlisted = self._find(ids_of(edge.target for _, edge in near)) == UNREACHED
                for (parent, edge), is_new in zip(near, unlisted, strict=True):
                    child = edge.target
                    edges.append((parent, child))
                    self._native.setdefault((id(parent), id(child)), edge)
                    if is_new and id(child) not in added:
                        added.add(id(child))
                        self.objects.append(child)
                        todo.append(child) if wanted(child) and not is_storage(child) else None
        return edges

    def _c_held(self, unlisted: Unlisted | None) -> list[tuple[object, object]]:
        """Return the references of numpy arrays, futures and scripted modules. Add unlisted objects if wanted."""
        if unlisted is not None:
            self._add_untracked(unlisted)
        edges = []
        unlisted_by_gc = of_classes(self.objects[self.first_gc_end :], keeps_in_c)
        for parent in [*self.of_types(keeps_in_c), *unlisted_by_gc]:
            for edge in c_held_edges(parent):
                edges.append((parent, edge.target))
                self._native.setdefault((id(parent), id(edge.target)), edge)
        return edges if unlisted is None else [*edges, *self._sharing()]

    def _add_untracked(self, unlisted: Unlisted) -> None:
        """Add unlisted objects that may lead to a tensor, starting at the referents of listed objects."""
        beyond = set(map(id, self.objects[self.first_gc_end :]))
        self.objects += [obj for key, obj in unlisted.leading.items() if key not in beyond]
        entries = [held.value for root in self.roots for held in root.entries]
        begin = [*self.objects[self.first_gc_end :], *self.instances(np.ndarray), *entries]
        beyond.update(unlisted.leading)
        self.objects += untracked(begin, are_listed=lambda ids: self._are_listed(ids, beyond))

    def _are_listed(self, ids: Iterable[int], rest: set[int]) -> list[bool]:
        """Return for each id whether gc lists its object or the id is in `rest`."""
        ids = list(ids)
        by_gc = self._find(np.array(ids, dtype=np.int64)) != UNREACHED
        return [is_listed or key in rest for key, is_listed in zip(ids, by_gc.tolist(), strict=True)]

    def _sharing(self) -> list[tuple[object, object]]:
        """Return the references from objects that share the memory of the `extra` storages to these storages."""
        tensors, capsules = (
            self.instances(torch.Tensor),
            [obj for obj in self.objects[self.first_gc_end :] if type(obj) is Capsule],
        )
        storages = [obj for obj in self._extra if is_storage(obj)]
        edges = []
        for owner, edge in shared_memory_edges(storages, tensors, capsules):
            edges.append((owner, edge.target))
            self._native.setdefault((id(owner), id(edge.target)), edge)
        return edges

    def _references(
        self, first: int, end: int, unlisted: Unlisted | None = None
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Return the number of listed referents of each object from `first` to `end`, and their positions.

        The references to objects that are not listed are added to `unlisted`.
        """
        mark = (object(),)
        lists = []
        for start in range(first, end, _CHUNK):
            near = referents_of(self.objects[start : min(start + _CHUNK, end)], mark)
            targets = self._find(near.ids)
            owners = np.repeat(np.arange(len(near.counts)), near.counts)
            lists.append(_listed(start, len(near.counts), owners, targets, self._is_short_cut))
            if unlisted is not None:
                others = np.flatnonzero(targets == UNREACHED)
                unlisted.note(near.at(others), near.ids[others], owners[others] + start)
        return lists

    def _may_callback_answer(self, children: list[NDArray[np.int32]]) -> bool:
        """Return True if a callback at exit may be an object whose `__eq__` belongs to the program.

        memwatch may not list the callbacks then, because that would call their `__eq__`. Most of these objects are not
        callbacks: torch imports sympy, which makes 42 callable constants with a generated `__eq__` (file `<string>`,
        which counts as the program's). But atexit does not show gc its references. So this method subtracts the
        references that the snapshot found from the reference count of each object. A callback has a larger difference
        than `_MEASURE`, which only a module and `objects` hold.

        Args:
            children: the positions of the objects' referents, in pieces.
        """
        places = self._classes.places(self._classes.ids_where(may_answer))
        if not len(places):
            return False
        measure = self.position(_MEASURE)
        if measure == UNREACHED:
            return True
        wanted = np.zeros(len(self.objects), dtype=bool)
        wanted[places] = wanted[measure] = True
        shown = Counter(place for piece in children for place in piece[wanted[piece]].tolist())
        hidden = {
            place: sys.getrefcount(self.objects[place]) - shown[place]
            for place in [*places.tolist(), measure]
        }
        return max(hidden.values()) > hidden[measure]

    def _of_roots(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the number of listed entries of each root, and the positions of the entries."""
        entries = [[held.value for held in root.entries] for root in self.roots]
        owners = np.repeat(np.arange(len(entries)), np.fromiter(map(len, entries), dtype=np.int64))
        targets = self._find(ids_of(chain.from_iterable(entries)))
        return _listed(self.first_root, len(entries), owners, targets, self._is_short_cut)

    def _with_more(
        self,
        lengths: NDArray[np.int32],
        children: NDArray[np.int32],
        parents: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Insert further references. Return the index of the first reference of each object, and all targets.

        Args:
            lengths: number of references of each object.
            children: the position of each target, in the order of the owners.
            parents: the owner of each further reference.
            targets: the target of each further reference.
        """
        listed = (parents != UNREACHED) & (targets != UNREACHED)
        order = np.argsort(parents[listed], kind="stable")
        parents, targets = parents[listed][order], targets[listed][order]
        starts = np.zeros(len(lengths) + 1, dtype=_POSITION)
        np.cumsum(lengths, out=starts[1:])
        children = np.insert(children, starts[1:][parents], targets)
        np.add.at(lengths, parents, 1)
        np.cumsum(lengths, out=starts[1:])
        return starts, children

    def _index(self) -> None:
        """Sort the ids of the objects listed so far, for :meth:`_find`."""
        ids = ids_of(self.objects)
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._order = order.astype(_POSITION)

    def _index_rest(self, first: int) -> None:
        """Insert the ids of the objects from the position `first` on into the sorted ids."""
        ids = ids_of(self.objects[first:])
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(self._ids, ids[order], side="right")
        self._order = np.insert(self._order, places, (order + first).astype(_POSITION))
        self._ids = np.insert(self._ids, places, ids[order])

    def _short_cuts(self) -> _ShortCuts:
        """Return a test for short cuts: references to a module's namespace from an object that is not a module.

        Every function refers to the namespace of its module.
        """
        loaded = set(map(id, list(sys.modules.values())))
        modules = [module for module in self.of_types(lambda cls: cls is ModuleType) if id(module) in loaded]
        # gc lists all modules and namespaces. `mode="clip"` maps all later positions to the last place, which is False
        is_namespace, is_module = (np.zeros(self.first_gc_end + 1, dtype=bool) for _ in range(2))
        is_namespace[self.positions(id(module.__dict__) for module in modules)] = True
        is_module[self.positions(map(id, modules))] = True
        return lambda owners, targets: (
            is_namespace.take(targets, mode="clip") & ~is_module.take(owners, mode="clip")
        )

    def _find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(self._ids):
            return np.full(len(ids), UNREACHED)
        spots = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[spots] == ids, self._order[spots], UNREACHED)

    def instances(self, base: type) -> list[Any]:
        """Return the objects gc lists whose real class derives from a class."""
        return self.of_types(lambda cls: derives(cls, base))

    def of_types(self, wanted: Callable[[type], bool]) -> list[Any]:
        """Return the objects gc lists whose real class is wanted."""
        places = self._classes.places(self._classes.ids_where(wanted))
        return [self.objects[place] for place in places.tolist()]

    def storages(self) -> list[torch.UntypedStorage]:
        """Return every storage of the graph, including the storages that only C++ holds."""
        found = [*self.instances(torch.UntypedStorage), *self.objects[self.first_gc_end : self.first_root]]
        return [obj for obj in found if is_storage(obj)]

    def is_old(self, position: int) -> bool:
        """Return True if gc listed an object and it is not young."""
        return position < self.first_gc_end and not self.is_young(self.objects[position])

    def has_old(self, positions: Iterable[int]) -> bool:
        """Return True if an object at these positions is old."""
        listed = [self.objects[position] for position in positions if position < self.first_gc_end]
        return not are_all_among(self.young, ids_of(listed))

    def is_young(self, obj: object) -> bool:
        """Return True if an object is young."""
        place = np.searchsorted(self.young, id(obj))
        return bool(place < len(self.young) and self.young[place] == id(obj))

    def _young_ids(self, old: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the sorted ids of the young objects. The snapshot holds these objects, so no id is used again."""
        if old is None:
            return np.sort(ids_of(gc.get_objects(0)))
        return np.sort(ids_of(self.objects)[~np.isin(identities(self.objects), old, assume_unique=True)])

    def positions(self, ids: Iterable[int]) -> list[int]:
        """Return the positions of the objects with these ids that the snapshot lists."""
        found = self._find(np.fromiter(ids, dtype=np.int64))
        return [int(position) for position in found if position != UNREACHED]

    def position(self, obj: object) -> int:
        """Return the position of an object; `UNREACHED` if the snapshot does not list it."""
        return int(self._find(np.array([id(obj)], dtype=np.int64))[0])

    def native_edge(self, parent: int, child: int) -> NativeEdge | None:
        """Return the reference from parent to child if C or C++ code holds it; None if Python does."""
        return self._native.get((id(self.objects[parent]), id(self.objects[child])))

    def referents(self, position: int) -> NDArray[np.int32]:
        """Return the positions of the referents of one object."""
        return self.children[self.starts[position] : self.starts[position + 1]]

    def reversed(self, among: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the referrers of each object: the index of its first referrer, and all referrers.

        Args:
            among: which objects count as referrers, by position; all by default.
        """
        lengths = np.diff(self.starts)
        parents = np.arange(len(self.objects), dtype=_POSITION)
        children = self.children
        if among is not None:
            kept = np.repeat(among, lengths)
            parents, lengths, children = parents[among], lengths[among], children[kept]
        order = np.argsort(children, kind="stable")
        starts = np.zeros(len(self.objects) + 1, dtype=np.int64)
        np.cumsum(np.bincount(children, minlength=len(self.objects)), out=starts[1:])
        return starts, np.repeat(parents, lengths)[order]

    def root_groups(self, *, runner: bool = False) -> list[list[int]]:
        """Return groups of the positions of the roots. The first group gives the best names.

        1. running calls and modules of the program;
        2. roots that explain, see `Root.explains`;
        3. other places of the program;
        4. places of the test runner, if `runner` is True.
        """
        groups: list[list[int]] = [[], [], [], []]
        for place, root in enumerate(self.roots):
            if root.runner:
                number = 3
            elif root.explains:
                number = 1
            else:
                number = 0 if root.kind in (RootKind.FRAME, RootKind.MODULES) else 2
            groups[number].append(self.first_root + place)
        return groups if runner else groups[:3]

    def barriers(self) -> set[int]:
        """Return the positions of the objects that searches do not enter.

        These are the coroutines that run, and the modules, calls, coroutines and instances of memwatch and of test
        runners.
        """
        tools = [
            module
            for name, module in list(sys.modules.items())
            if type(name) is str and is_tool_module(name) and type(module) is ModuleType
        ]
        calls = self.of_types(lambda cls: cls is FrameType)  # of coroutines that run, up to Python 3.10
        found = self.positions(id(obj) for module in tools for obj in (module, module.__dict__))
        found += self.positions(id(call) for call in calls if is_own_code(call.f_code))
        coroutines = self.of_types(lambda cls: cls is CoroutineType)
        found += self.positions(id(one) for one in coroutines if is_test_runner_code(one.cr_code.co_filename))
        instances = self._classes.places(self._classes.ids_where(is_tool_class))
        return {*found, *instances.tolist(), *self.running_coroutines()}

    def running_coroutines(self) -> list[int]:
        """Return the positions of the coroutines and generators that run.

        Each running call is a root and has the variables. From Python 3.14 on, gc shows them in the running coroutine
        too. The calls of memwatch are not roots, so they are recognised by their code.
        """
        calls = {root.frame_id for root in self.roots}
        running = ((obj, _call_of(obj)) for obj in self.of_types(lambda cls: id(cls) in _COROUTINES))
        return self.positions(
            id(obj)
            for obj, call in running
            if call is not None and (id(call) in calls or is_own_code(call.f_code))
        )


_COROUTINES: Final = {
    id(CoroutineType): ("cr_running", "cr_frame"),
    id(GeneratorType): ("gi_running", "gi_frame"),
    id(AsyncGeneratorType): ("ag_running", "ag_frame"),
}


def _call_of(coroutine: Any) -> FrameType | None:
    """Return the call of a coroutine that may run. An async generator that waits for a value counts as running."""
    is_running, call = _COROUTINES[id(type(coroutine))]
    found: FrameType | None = getattr(coroutine, call) if getattr(coroutine, is_running) else None
    return found


_ShortCuts = Callable[["NDArray[np.int64]", "NDArray[np.int64]"], "NDArray[np.bool_]"]
"""Takes the positions of the owners and targets of references. Returns for each reference whether it is a short cut."""


def _listed(
    first: int, count: int, owners: NDArray[np.int64], targets: NDArray[np.int64], is_short_cut: _ShortCuts
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the number of references of each owner, and the positions of all targets, in the order of the owners.

    Short cuts and references to objects that are not listed are left out.

    Args:
        first: the position of the first owner.
        count: number of owners.
        owners: the position of the owner of each reference, minus `first`.
        targets: the position of the target of each reference.
        is_short_cut: returns which references are short cuts.
    """
    kept = np.flatnonzero(targets != UNREACHED)
    targets, owners = targets[kept], owners[kept]
    left_out = is_short_cut(owners + first, targets)
    if left_out.any():
        targets, owners = targets[~left_out], owners[~left_out]
    return np.bincount(owners, minlength=count).astype(_POSITION), targets.astype(_POSITION)


def _frozen(listed: Sequence[object], ours: Iterable[object]) -> list[object]:
    """Find the objects that ``gc.freeze`` removed from gc's lists, by following references.

    The objects in `ours` are left out: they belong to the snapshot and refer to every object.
    """
    if not gc.get_freeze_count():
        return []
    known = {id(obj) for obj in chain(listed, ours)}
    found: list[object] = []
    todo: list[object] = [*sys.modules.values(), *chain(listed)]
    while todo:
        fresh = [obj for obj in gc.get_referents(*todo) if id(obj) not in known and gc.is_tracked(obj)]
        todo = list({id(obj): obj for obj in fresh}.values())
        known.update(map(id, todo))
        found += todo
    return found
