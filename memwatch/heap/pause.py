"""Keep the cyclic garbage collector from running amid a check or a look, and leave its state as it was.

All of memwatch shares one pause: what ends in one thread does not end what another still needs.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import MethodType
from typing import Final

HAS_THREE_GENERATIONS: Final = sys.version_info < (3, 14)


class _Pause:
    """Counts overlapping users; the first switches automatic collection off, the last restores it."""

    def __init__(self) -> None:
        self.depth = 0
        self.was_enabled = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Have a lock that no thread of a parent process holds."""
        self.lock = threading.RLock()  # a signal's handler may pause amid a pause


_PAUSE: Final = _Pause()
os.register_at_fork(after_in_child=_PAUSE.renew_lock)


def pause_gc() -> None:
    """Switch automatic collection off until the matching :func:`resume_gc`."""
    with _PAUSE.lock:
        _PAUSE.depth += 1  # first, and last below: a handler in between finds a pause that is another's
        if _PAUSE.depth == 1:
            _PAUSE.was_enabled = gc.isenabled()
            gc.disable()


def resume_gc() -> None:
    """Undo one :func:`pause_gc`."""
    with _PAUSE.lock:
        if _PAUSE.depth == 1 and _PAUSE.was_enabled:
            gc.enable()
        _PAUSE.depth -= 1


def stop_calling(owner: object) -> None:
    """Take the methods of an object out of gc's callbacks; those of the program aren't compared with anything."""
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

    After this, the youngest generation holds only what was born later: the survivors of a block can be listed
    without looking at the rest of the heap.
    """
    if gc.get_freeze_count():
        collect(0)  # the program froze objects; freezing and unfreezing would undo that
    else:
        gc.freeze()
        gc.unfreeze()


def recent_objects() -> list[object]:
    """Return the objects that no full collection has seen yet; drop the list soon."""
    return gc.get_objects(0) + (gc.get_objects(1) if HAS_THREE_GENERATIONS else [])
