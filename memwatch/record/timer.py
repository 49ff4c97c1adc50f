"""A thread that does something now and then, from when it is wanted until it is told to stop."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class RepeatingThread(threading.Thread):
    """A thread of memwatch's own."""


class Timer:
    """Calls a function every so often in a thread of its own; errors of the function are dropped."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = [act]
        self._done: Final = threading.Event()
        # the thread that was told to stop may run on for a while: it must not keep what `act` refers to
        self._to_start = [functools.partial(_repeat, self._done, seconds, self._act)]

    def start(self) -> None:
        """Begin, unless it has begun or is over; any thread may ask."""
        with contextlib.suppress(IndexError):
            RepeatingThread(target=self._to_start.pop(), name="memwatch-flush", daemon=True).start()

    def stop(self) -> None:
        """End for good, and let go of the function."""
        self._to_start.clear()
        self._act.clear()
        self._done.set()


def _repeat(done: threading.Event, seconds: float, to_call: list[Callable[[], None]]) -> None:
    while not done.wait(seconds):
        with contextlib.suppress(Exception):
            to_call[0]()  # no name here for the function
