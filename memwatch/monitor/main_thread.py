"""Call a function in the main thread of the program, between two bytecode instructions."""

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
        stopped: an event. Once it is set, `call` does not wait any longer.

    Attributes:
        cpu_s: CPU time of all calls for other threads together, in seconds.
    """

    def __init__(self, stopped: threading.Event) -> None:
        self.cpu_s = 0.0
        self._stopped = stopped
        self._waiting = threading.Event()
        self._waiting.set()

    def call(self, function: Callable[[], T], timeout_s: float) -> T | None:
        """Return the result of a function; None if it fails, or if the main thread does not call it in time.

        The main thread cannot call it while it waits for another thread or runs C code.
        """
        if threading.current_thread() is threading.main_thread():
            return function()
        if not self._waiting.is_set():
            return None  # the last call still waits
        result: list[T] = []
        # The main thread takes this lock to begin the call, the caller takes it to give up. Only one of them gets it.
        is_wanted = threading.Lock()
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
                pass_on(error)  # raise it again if a signal handler of the program raised it
            finally:
                self.cpu_s += time.thread_time() - before_s
                done.set()

        call_later(run)
        end_s = time.monotonic() + timeout_s
        while not done.wait(_POLL_S):
            if begun.is_set():  # wait for the end of the call, which uses objects of the caller
                continue
            if (self._stopped.is_set() or time.monotonic() > end_s) and is_wanted.acquire(blocking=False):
                return None
        return result[0] if result else None
