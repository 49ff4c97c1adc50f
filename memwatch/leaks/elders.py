"""The storages that were there before a block: one of them that dies in it may only have been replaced.

All blocks of a process share one book. The first block looks at the whole heap; the next ones look at what was made
since the last block, which gc keeps among its young objects unless it has collected those meanwhile. Where many checks
come, as in a session of tests, `follow` has every collection looked at, so that the heap need not be.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.pause import HAS_THREE_GENERATIONS, calls, recent_objects, stop_calling
from memwatch.heap.tensors import is_storage, is_tensor
from memwatch.leaks.new_storages import NewStorages, empty_storage, storages_behind, tensors_among
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    import torch

    from memwatch.leaks.new_storages import NewStorage

_BEFORE: Final = -1
"""The run of what was there before all runs."""


class _Promotions:
    """The tensors that gc moved among its oldest objects since the last block.

    Looking at what is moved costs no more than listing the heap does: after as many objects it is given up.
    """

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[Any]] = []
        self._collections = -1  # up to which all of them are known
        self._objects_left = 0

    def restart(self, most_objects: int) -> None:
        """Begin anew: all that is old now is listed.

        Args:
            most_objects: how many objects may be looked at.
        """
        self._tensors.clear()
        self._collections = _collections()
        self._objects_left = most_objects

    def take(self) -> list[object] | None:
        """Return the moved tensors that are alive, or None if some may have been missed; drop the list soon."""
        if self._collections != _collections() or not HAS_THREE_GENERATIONS:
            return None
        return [tensor for tensor in (ref() for ref in self._tensors) if tensor is not None]

    @raises_later
    def look(self, phase: str, info: dict[str, int]) -> None:
        """Note the tensors that a collection is about to move; gc calls this when a collection starts and ends."""
        if phase != "start" or info["generation"] == 0 or self._objects_left <= 0:
            return
        if self._collections == _collections():
            moved = gc.get_objects(0) + gc.get_objects(1)
            self._objects_left -= len(moved)
            tensors = tensors_among(moved)
            self._tensors += [weakref.ref(obj) for obj in tensors if is_tensor(obj) or is_storage(obj)]
            self._collections += 1  # this one, once it has ended


def _collections() -> int:
    """Return how often gc moved objects to its oldest generation."""
    _, middle, oldest = gc.get_stats()
    return int(middle["collections"] + oldest["collections"])


class _Book:
    """The known storages of this process.

    Attributes:
        storages: those from before the block, or made in one.
        empty: those of 0 bytes, which may get memory in a block.
        heap_objects: number of gc's objects when the heap was listed.
        is_complete: True unless gc hides objects from before the block, as after `gc.freeze`.
        blocks: number of open blocks.
    """

    def __init__(self) -> None:
        self.storages = NewStorages()
        self.empty: dict[int, weakref.ref[torch.UntypedStorage]] = {}
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
    for storage in storages_behind([*tensors_among(fresh), *(promoted or ())]):
        if not _BOOK.storages.has(storage) and _BOOK.storages.add(storage, _BEFORE) is None:
            _BOOK.empty[id(storage)] = weakref.ref(storage)
    _BOOK.promoted.restart(_BOOK.heap_objects)
