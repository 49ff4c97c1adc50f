"""A thread that does something now and then, from when it is wanted until it is told to stop."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Final

from memwatch.own_code import OwnThread
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable


_END_WITHIN_S: Final = 1.0
"""How long the end of a block waits for a write that is under way, as to a disk that does not answer."""


class Timer:
    """Calls a function every so often in a thread of its own; errors of the function are dropped."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = [act]
        self._done: Final = threading.Event()
        # the thread that was told to stop may run on for a while: it must not keep what `act` refers to
        target = functools.partial(_repeat, self._done, seconds, self._act)
        self._to_start = [OwnThread(target=target, name="memwatch-flush", daemon=True)]
        self._started: list[threading.Thread] = []

    def start(self) -> None:
        """Begin, unless it has begun or is over; any thread may ask."""
        with suppress(IndexError):
            thread = self._to_start.pop()
            thread.start()
            self._started.append(thread)

    def stop(self) -> None:
        """End for good, let go of the function, and wait for the thread unless the function takes long."""
        self._to_start.clear()
        self._act.clear()
        self._done.set()
        for thread in self._started:
            thread.join(_END_WITHIN_S)


def _repeat(done: threading.Event, seconds: float, to_call: list[Callable[[], None]]) -> None:
    while not done.wait(seconds):
        with contextlib.suppress(Exception):
            to_call[0]()  # no name here for the function
