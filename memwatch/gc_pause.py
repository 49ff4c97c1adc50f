"""Pause the cyclic garbage collector during a check or a sample, and leave its state as it was.

All of memwatch shares one pause. It lasts until the last thread that needs it has ended it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from types import MethodType
from typing import Final

HAS_THREE_GENERATIONS: Final = sys.version_info < (3, 14)


class GcPause:
    """One pause of the collection. It ends with `resume_gc`, or when the last reference to it is gone.

    A signal's handler may raise between the pause and the `try` that would end it. Then the caller's frame goes, and
    the pause with it. Without this, a Ctrl-C at that point would switch collection off for the rest of the process.
    """

    __slots__ = ("__weakref__",)


class _Pauses:
    """The pauses that overlap. The first switches automatic collection off, the last restores it."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref[GcPause]] = []
        self.was_enabled = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Have a lock that no thread of a parent process holds."""
        self.lock = threading.RLock()  # a signal's handler may begin a pause inside a pause

    def drop(self, pause: GcPause | None = None) -> None:
        """Drop a pause, and all pauses without a reference; if none is left, restore automatic collection."""
        left = [ref for ref in self.alive if (held := ref()) is not None and held is not pause]
        if self.alive and not left and self.was_enabled:
            gc.enable()  # before the list is empty: a handler in between finds a pause, and changes nothing
        self.alive[:] = left


_PAUSES: Final = _Pauses()
os.register_at_fork(after_in_child=_PAUSES.renew_lock)


def pause_gc() -> GcPause:
    """Switch automatic collection off until `resume_gc` is called with the result; keep the result until then."""
    with _PAUSES.lock:
        _PAUSES.drop()
        pause = GcPause()
        if not _PAUSES.alive:
            _PAUSES.was_enabled = gc.isenabled()
        _PAUSES.alive.append(weakref.ref(pause))
        gc.disable()
    return pause


def resume_gc(pause: GcPause) -> None:
    """End a pause."""
    with _PAUSES.lock:
        _PAUSES.drop(pause)


def is_gc_paused() -> bool:
    """Return True if a pause is on."""
    with _PAUSES.lock:
        _PAUSES.drop()
        return bool(_PAUSES.alive)


def stop_calling(owner: object) -> None:
    """Remove the methods of an object from gc's callbacks without comparing the program's callbacks."""
    gc.callbacks[:] = [
        each for each in gc.callbacks if type(each) is not MethodType or each.__self__ is not owner
    ]


def calls(owner: object) -> bool:
    """Return True if gc calls a method of an object."""
    return any(type(each) is MethodType and each.__self__ is owner for each in list(gc.callbacks))


def collect(generation: int = 2) -> None:
    """Collect garbage once, whatever debug flags the program set, adding nothing to ``gc.garbage``."""
    flags = gc.get_debug()
    gc.set_debug(0)
    try:
        gc.collect(generation)
    finally:
        gc.set_debug(flags)


def age_everything() -> None:
    """Move every object out of gc's youngest generation, at no cost.

    After this, the youngest generation holds only objects that are born later. So the survivors of a block can be
    listed without a search of the whole heap.
    """
    if gc.get_freeze_count():
        collect(0)  # the program froze objects; freezing and unfreezing would undo that
    else:
        gc.freeze()
        gc.unfreeze()


def objects_since(marker: object) -> list[object]:
    """Return the objects that gc lists behind a marker, which were made after it; drop the list soon.

    gc lists the objects of one generation in the order in which it began to track them, and a collection moves them on
    in that order.
    """
    newer: list[object] = []
    for generation in range(3):
        objects = gc.get_objects(generation)
        for at in range(
            len(objects) - 1, -1, -1
        ):  # no closure: the list has all cells, and would be in a cycle
            if objects[at] is marker:
                return newer + objects[at + 1 :]
        newer += objects
    return []


def recent_objects() -> list[object]:
    """Return the objects that no full collection has seen yet; drop the list soon."""
    return gc.get_objects(0) + (gc.get_objects(1) if HAS_THREE_GENERATIONS else [])
