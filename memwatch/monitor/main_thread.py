"""Call a function in the main thread of the program, between two of its bytecodes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from memwatch.signal_handlers import call_later, pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_POLL_S = 0.05  # seconds between two checks whether the main thread has answered; a guess


class MainThread:
    """Calls functions in the main thread, one at a time.

    Args:
        stopped: nobody waits for the main thread after it is set.

    Attributes:
        cpu_s: processor time that all calls for other threads took together, in seconds.
    """

    def __init__(self, stopped: threading.Event) -> None:
        self.cpu_s = 0.0
        self._stopped = stopped
        self._waiting = threading.Event()
        self._waiting.set()

    def call(self, function: Callable[[], T], timeout_s: float) -> T | None:
        """Return the result of a function; None if it fails, or if the main thread does not call it in time.

        A main thread that waits for another thread, or that runs C code, calls it too late.
        """
        if threading.current_thread() is threading.main_thread():
            return function()
        if not self._waiting.is_set():
            return None  # the last call still waits
        result: list[T] = []
        is_wanted = threading.Lock()  # whoever takes it decides: the call begins, or nobody waits any more
        begun, done = threading.Event(), threading.Event()
        self._waiting.clear()

        def run() -> None:
            self._waiting.set()
            if not is_wanted.acquire(blocking=False):
                return
            begun.set()
            before_s = time.thread_time()
            try:
                result.append(function())
            except Exception as error:
                pass_on(error)  # a signal's handler raised it: it belongs to the program
            finally:
                self.cpu_s += time.thread_time() - before_s
                done.set()

        call_later(run)
        end_s = time.monotonic() + timeout_s
        while not done.wait(_POLL_S):
            if begun.is_set():  # it will end, and uses what we hold
                continue
            if (self._stopped.is_set() or time.monotonic() > end_s) and is_wanted.acquire(blocking=False):
                return None
        return result[0] if result else None
