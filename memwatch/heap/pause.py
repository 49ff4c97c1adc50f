"""Keep the cyclic garbage collector from hiding cycles while a check runs, and leave its state as it was."""

from __future__ import annotations

import gc
import threading
from typing import Final

_LOCK: Final = threading.Lock()


class _Pause:
    """Counts overlapping checks; the first switches automatic collection off, the last restores it."""

    def __init__(self) -> None:
        self.depth = 0
        self.was_enabled = False


_PAUSE: Final = _Pause()


def pause_gc() -> None:
    """Switch automatic collection off until the matching :func:`resume_gc`."""
    with _LOCK:
        if _PAUSE.depth == 0:
            _PAUSE.was_enabled = gc.isenabled()
            gc.disable()
        _PAUSE.depth += 1


def resume_gc() -> None:
    """Undo one :func:`pause_gc`."""
    with _LOCK:
        _PAUSE.depth -= 1
        if _PAUSE.depth == 0 and _PAUSE.was_enabled:
            gc.enable()


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
