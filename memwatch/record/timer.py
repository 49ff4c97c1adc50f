"""A thread that does something now and then, until it is told to stop."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RepeatingThread(threading.Thread):
    """A thread of memwatch's own."""


def repeat_every(seconds: float, act: Callable[[], None]) -> threading.Event:
    """Call a function every so often in a thread of its own, until the result is set; its errors are dropped."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            with contextlib.suppress(Exception):
                act()

    RepeatingThread(target=run, name="memwatch-flush", daemon=True).start()
    return done
