"""Know the threads that a call started, and wait until they are at rest, so that each call is charged its own tensors.

A loader's thread fills its queue while the call that started it returns. Its tensors belong to that call. Without the
wait they would count for the next call, or after the last call for none.

A thread that each call starts and does not end is one cause, whichever of its variables hold tensors.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Final

_REST_S: Final = 0.005
"""A thread whose innermost line of Python stays the same for so long waits for something. Guess: a tensor of 64 KiB and
a place in a queue take a tenth of a millisecond."""
_MOST_S: Final = 0.1
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
        end_s = time.monotonic() + _MOST_S
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
        return {
            ident: (id(frames[ident]), frames[ident].f_lasti) if ident in frames else (0, 0)
            for ident in fresh
        }

    def _is_older(self, thread: threading.Thread) -> bool:
        known = self._older.get(id(thread))
        return known is not None and known() is thread
