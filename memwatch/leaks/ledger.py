"""The changes of each run: storages born and left, storages that died, storages that grew in place.

The threads that a run started are at rest before its changes are noted. The storages from before the runs are known
from a book that all checks of a process share.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.autograd import sequence_nr_of
from memwatch._torch.autograd_state import autograd_state, requires_grad
from memwatch.gc_pause import HAS_THREE_GENERATIONS, calls, recent_objects, stop_calling
from memwatch.heap.classes import of_classes
from memwatch.heap.tensors import TypeFilter, is_storage, is_tensor, quiet
from memwatch.leaks.new_storages import (
    NewStorages,
    YoungWatch,
    behind,
    empty_storage,
    storages_behind,
)
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from memwatch.leaks.new_storages import InPlaceChange, NewStorage

# Know the threads that a call started, and wait until they are at rest, so that each call is charged its own tensors.
#
# A loader's thread fills its queue while the call that started it returns. Its tensors belong to that call. Without the
# wait they would count for the next call, or after the last call for none.
#
# A thread that each call starts and does not end is one cause, whichever of its variables hold tensors.

_REST_S: Final = 0.005
"""A thread whose innermost line of Python stays the same for so long waits for something. Guess: a tensor of 64 KiB and
a place in a queue take a tenth of a millisecond."""
_MOST_REST_S: Final = 0.1
"""A thread that works on is not waited for any longer after each call. Guess."""


class Threads:
    """The threads that were started since this object was made."""

    def __init__(self) -> None:
        self._older = {id(thread): weakref.ref(thread) for thread in threading.enumerate()}

    def started(self) -> frozenset[int]:
        """Return the identifiers of the new threads that run."""
        return frozenset(thread.ident or 0 for thread in threading.enumerate() if not self._is_older(thread))

    def settle(self) -> None:
        """Wait until each of the new threads waits for something or has ended, a tenth of a second at most."""
        end_s = time.monotonic() + _MOST_REST_S
        places = self._places()
        since_s = time.monotonic()
        while places:
            time.sleep(_REST_S / 5)
            now_s, now = time.monotonic(), self._places()
            if now != places:
                places, since_s = now, now_s
            if now_s - since_s > _REST_S or now_s > end_s:
                return

    def _places(self) -> dict[int | None, tuple[int, int]]:
        """Return the instruction that each of the new threads executes; keeps no frame alive."""
        fresh = [
            thread.ident
            for thread in threading.enumerate()
            if not self._is_older(thread) and thread is not threading.current_thread()
        ]
        if not fresh:
            return {}
        frames = sys._current_frames()
        try:
            return {
                ident: (id(frames[ident]), frames[ident].f_lasti) if ident in frames else (0, 0)
                for ident in fresh
            }
        finally:
            frames.clear()  # it contains this call's own frame: the cycle would keep all callers' variables

    def _is_older(self, thread: threading.Thread) -> bool:
        known = self._older.get(id(thread))
        return known is not None and known() is thread


# The storages that were there before a block: one of them that dies in it may only have been replaced.
#
# All blocks of a process share one book. The first block looks at the whole heap; the next ones look at what was made
# since the last block, which gc keeps among its young objects unless it has collected those meanwhile. Where many
# checks come, as in a session of tests, `follow` has every collection looked at, so that the heap need not be.

_BEFORE: Final = -1
"""The run of what was there before all runs."""


class _Promotions:
    """The tensors and possible tables of hooks that gc moved among its oldest objects since the last block.

    Looking at what is moved costs no more than listing the heap does: after as many objects it is given up.
    """

    def __init__(self) -> None:
        self._moved: list[weakref.ref[Any]] = []
        self._collections = -1  # up to which all of them are known
        self._objects_left = 0

    def restart(self, most_objects: int) -> None:
        """Begin anew: all that is old now is listed.

        Args:
            most_objects: how many objects may be looked at.
        """
        self._moved.clear()
        self._collections = _collections()
        self._objects_left = most_objects

    def take(self) -> list[object] | None:
        """Return the moved objects that are alive, or None if some may have been missed; drop the list soon."""
        if self._collections != _collections() or not HAS_THREE_GENERATIONS:
            return None
        return [obj for obj in (ref() for ref in self._moved) if obj is not None]

    @raises_later
    def look(self, phase: str, info: dict[str, int]) -> None:
        """Note the tensors that a collection is about to move; gc calls this when a collection starts and ends."""
        if phase != "start" or info["generation"] == 0 or self._objects_left <= 0:
            return
        if self._collections == _collections():
            moved = gc.get_objects(0) + gc.get_objects(1)
            self._objects_left -= len(moved)
            found = _noted_among(moved)
            self._moved += [
                weakref.ref(obj)
                for obj in found
                if is_tensor(obj) or is_storage(obj) or type(obj) is OrderedDict
            ]
            self._collections += 1  # this one, once it has ended


def _noted_among(objects: Sequence[object]) -> list[object]:
    """Return the tensors, autograd nodes and ordered dictionaries among many objects; drop the list soon."""
    wants = TypeFilter().wants
    return of_classes(objects, lambda cls: cls is OrderedDict or wants(cls))


def _collections() -> int:
    """Return how often gc moved objects to its oldest generation."""
    _, middle, oldest = gc.get_stats()
    return int(middle["collections"] + oldest["collections"])


class _Book:
    """The known storages of this process.

    Attributes:
        storages: those from before the block, or made in one.
        empty: those of 0 bytes, which may get memory in a block.
        tensors: the tensors that an op may change in place while autograd records it, by `id`. Parameters are left out.
        tables: the ordered dictionaries, some of which are tables of hooks, by `id`. Dead ones are dropped from time
            to time.
        heap_objects: number of gc's objects when the heap was listed.
        is_complete: True unless gc hides objects from before the block, as after `gc.freeze`.
        blocks: number of open blocks.
    """

    def __init__(self) -> None:
        self.storages = NewStorages()
        self.empty: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self.tables: dict[int, weakref.ref[OrderedDict[Any, Any]]] = {}
        self.most_tables = 0  # beyond this number, the dead ones are dropped
        self.promoted = _Promotions()
        self.heap_objects = 0
        self.is_complete = False
        self.blocks = 0


_BOOK: Final = _Book()


def follow() -> None:
    """Keep the book between blocks too, until `unfollow`: many are to come."""
    if not calls(_BOOK.promoted):
        gc.callbacks.append(_BOOK.promoted.look)


def unfollow() -> None:
    """Leave gc's collections alone."""
    stop_calling(_BOOK.promoted)


def open_block() -> tuple[dict[int, NewStorage], dict[int, int]]:
    """Begin a block. Return the living storages, by `id`, and the bytes of those that changed their size."""
    _BOOK.blocks += 1
    _list_what_was_made()
    changed = {}
    for key, made in _BOOK.storages.by_id.items():
        now_bytes = made.bytes_now()
        if now_bytes != made.nbytes:
            if _BOOK.blocks == 1:
                made.nbytes = now_bytes
            else:  # the block around this one compares with the bytes that it began with
                changed[key] = now_bytes
    living = ((key, ref()) for key, ref in _BOOK.empty.items())
    empty = {key: empty_storage(storage) for key, storage in living if storage is not None}
    return empty | _BOOK.storages.by_id, changed


def close_block() -> None:
    """End a block."""
    _BOOK.blocks -= 1


def is_from_block(storage: torch.UntypedStorage) -> bool:
    """Return True if a storage that was not in the book when the block began was certainly made in it."""
    empty = _BOOK.empty.get(id(storage))
    return _BOOK.is_complete and (empty is None or empty() is not storage)


def _list_what_was_made() -> None:
    """List the storages that were made since the last time."""
    _BOOK.storages.alive()
    _BOOK.empty = {key: ref for key, ref in _BOOK.empty.items() if ref() is not None}
    _BOOK.is_complete = not gc.get_freeze_count()
    promoted = _BOOK.promoted.take() if _BOOK.is_complete else None
    if promoted is None:
        fresh = gc.get_objects()
        _BOOK.heap_objects = len(fresh)
    else:
        fresh = recent_objects()
    noted = [*_noted_among(fresh), *(promoted or ())]
    _note_tables(each for each in noted if type(each) is OrderedDict)
    made = [each for each in noted if type(each) is not OrderedDict]
    del noted
    _BOOK.tensors = {key: ref for key, ref in _BOOK.tensors.items() if ref() is not None}
    with quiet():
        changeable = (each for each in made if is_tensor(each) and not _is_parameter(each))
        _BOOK.tensors.update((id(each), weakref.ref(each)) for each in changeable)
    for storage in storages_behind(made):
        if not _BOOK.storages.has(storage) and _BOOK.storages.add(storage, _BEFORE) is None:
            _BOOK.empty[id(storage)] = weakref.ref(storage)
    _BOOK.promoted.restart(_BOOK.heap_objects)


def _note_tables(tables: Iterable[OrderedDict[Any, Any]]) -> None:
    """Note ordered dictionaries.

    A module has 11 tables of hooks, so a model has many more tables than tensors. The dead ones are dropped once they
    may be half of all, or else this would take most of the time of a block.
    """
    _BOOK.tables.update((id(table), weakref.ref(table)) for table in tables)
    if len(_BOOK.tables) > _BOOK.most_tables:
        _BOOK.tables = {key: ref for key, ref in _BOOK.tables.items() if ref() is not None}
        _BOOK.most_tables = 2 * len(_BOOK.tables)


def older_tables() -> list[OrderedDict[Any, Any]]:
    """Return the ordered dictionaries from before the block that was opened last; drop the list soon."""
    return [table for ref in list(_BOOK.tables.values()) if (table := ref()) is not None]


def _is_parameter(tensor: Any) -> bool:
    """Return True for a leaf that requires a gradient, which autograd lets no op change in place."""
    return requires_grad(tensor) and autograd_state(tensor).is_leaf


class _OlderGraphs:
    """The tensors from before a block to whose graph an op of the block adds in place, as `total += loss`."""

    def __init__(self) -> None:
        with quiet():
            living = [(ref, tensor) for ref in _BOOK.tensors.values() if (tensor := ref()) is not None]
            self._numbers = [(ref, _number_of_graph(tensor)) for ref, tensor in living]

    def changed(self) -> list[torch.Tensor]:
        """Return the tensors with another autograd node than at the beginning; drop the list soon."""
        with quiet():
            living = [(tensor, number) for ref, number in self._numbers if (tensor := ref()) is not None]
            return [tensor for tensor, number in living if _number_of_graph(tensor) not in (None, number)]


def _number_of_graph(tensor: torch.Tensor) -> int | None:
    """Return the number of a tensor's autograd node; None without one."""
    node = autograd_state(tensor, with_node=True).grad_fn if requires_grad(tensor) else None
    return None if node is None else sequence_nr_of(node)


@dataclass(slots=True)
class Change:
    """The changes of one run to the storages that outlive it.

    Attributes:
        born: storages that the run made and left.
        died: storages from before the run that it freed.
        grown: storages from before the run that are larger after it, each with the bytes added.
        nodes: living autograd nodes behind the tensors that the runs made, and behind older ones that got a graph.
    """

    born: list[NewStorage] = field(default_factory=list)
    died: list[NewStorage] = field(default_factory=list)
    grown: list[NewStorage] = field(default_factory=list)
    nodes: int = 0

    def added(self) -> Counter[tuple[str, int]]:
        """Count the storages left beyond those that replaced dead ones of the same size and device."""
        return _sizes(self.born) - _sizes(self.died) + _sizes(self.grown)

    def hides_growth(self, run: int) -> bool:
        """Return True if the figures alone cannot show growth, so that the holders are needed.

        The figures are enough in three cases: nothing died; just as much was born; or the born storages include, by
        size, all dead ones, and these came from the previous run, as with a value that each run replaces.
        """
        born, died = _sizes(self.born), _sizes(self.died)
        if self.grown or not died or born == died:
            return bool(self.grown)
        return not (died <= born and all(made.run == run - 1 for made in self.died))

    def may_hide_growth(self) -> bool:
        """Return True if a new storage may be an enlarged copy of a smaller dead one, as by `torch.cat`.

        If lines are noted, the sources of each storage are known instead.
        """
        born, died = _sizes(self.born), _sizes(self.died)
        smallest: dict[str, int] = {}
        for device, nbytes in died - born:
            smallest[device] = min(nbytes, smallest.get(device, nbytes))
        return any(nbytes > smallest.get(device, nbytes) for device, nbytes in born - died)


def _sizes(storages: list[NewStorage]) -> Counter[tuple[str, int]]:
    return _CountBySize(made.size for made in storages)


class _CountBySize(Counter[tuple[str, int]]):
    """Storages counted by size; a class of its own, so that ours are not counted as the program's objects."""


class Ledger:
    """Holds gc still over some runs and keeps the book of their storages, by weak references."""

    def __init__(self) -> None:
        self._young = YoungWatch(self._at_collection)
        self._known: dict[int, NewStorage] = {}
        self._bytes: dict[int, int] = {}  # of the storages that changed their size in a run
        self._grown: list[NewStorage] = []
        self._waiting: set[int] = set()  # storages that were dead before gc ran
        self._older: _OlderGraphs | None = None
        self.in_place: dict[int, InPlaceChange] = {}  # the last recorded change of each storage, by its `id`

    def start(self) -> None:
        """Begin the first run."""
        self._young.start()
        try:
            self._known, self._bytes = open_block()
            self._older = _OlderGraphs()
        except BaseException:
            self._young.stop()
            raise
        self._young.begin()

    def older_ends(self) -> list[torch.Tensor]:
        """Return the tensors from before the runs that got another graph; drop the list soon."""
        return [] if self._older is None else self._older.changed()

    def stop(self) -> None:
        """End the last run and give gc back."""
        try:
            close_block()
        finally:
            self._young.stop()

    def _at_collection(self, phase: str) -> None:
        """Forget what gc frees in a run: garbage from before made room for nothing."""
        dead = {key for key, made in self._known.items() if not made.alive}
        if phase == "start":
            self._waiting = dead
            return
        for key in dead - self._waiting:
            del self._known[key]

    def survives(self) -> bool:
        """Return True if something that a run made is alive, or grew."""
        return bool(self._grown) or any(made.run >= 0 and made.alive for made in self._known.values())

    def end_run(self, run: int, watched: NewStorages | None = None) -> Change:
        """Note what a run did.

        Args:
            run: its index.
            watched: the storages that were seen being made in it.
        """
        change = Change()
        born = watched or NewStorages()
        self.in_place.update(born.in_place)
        for key, made in list(self._known.items()):
            if not made.alive:
                del self._known[key]
                change.died += [made] * bool(made.nbytes)
            elif (more := made.bytes_now() - self._bytes.get(key, made.nbytes)) != 0:
                # a storage that gets its first memory was born, it did not grow
                if more > 0 and self._bytes.get(key, made.nbytes):
                    site, caller = born.resized_at.get(key, (made.site, made.caller))
                    grown = replace(
                        made, nbytes=more, run=run, certain=True, site=site, caller=caller, grew=True
                    )
                    change.grown.append(grown)
                self._bytes[key] = made.bytes_now()
        self._grown += change.grown
        dead_bytes = {id(made.ref): made.nbytes for made in change.died}
        storages, change.nodes = behind([*self.older_ends(), *self._young.survivors()])
        for storage in storages:
            born.add(storage, run, certain=is_from_block(storage))
        for key, made in list(born.by_id.items()):
            if made.alive and key not in self._known:  # which the living alone are left in
                made.replaced_bytes = max(
                    (dead_bytes.get(id(source), 0) for source in made.sources), default=0
                )
                made.grew = made.replaced_bytes > 0
                self._known[key] = made
                self._bytes.pop(key, None)
                change.born.append(made)
        return change

    def skip(self, seconds: float) -> None:
        """Exclude a time in which the program did not run from the ages of its storages."""
        for made in self._known.values():
            made.time_s += seconds

    def alive(self, first_run: int) -> list[NewStorage]:
        """Return the living storages that a run from this one on made or made larger, each once."""
        grown = {id(made.ref): made for made in self._grown if made.run >= first_run and made.alive}
        born = (made for made in self._known.values() if made.run >= first_run and made.alive)
        return [*(made for made in born if id(made.ref) not in grown), *grown.values()]

    def young(self) -> list[object]:
        """Return the living tensors, nodes and storages that the runs made; drop the list soon."""
        return self._young.survivors()

    def graph_ends(self) -> list[torch.Tensor]:
        """Return the living tensors that the runs made with a graph; drop the list soon."""
        with quiet():
            tensors: list[Any] = [obj for obj in self._young.survivors() if is_tensor(obj)]
            return [each for each in tensors if not autograd_state(each).is_leaf]

    def older(self) -> list[NewStorage]:
        """Return the living storages from before the first run."""
        return [made for made in self._known.values() if made.run < 0 and made.alive]
