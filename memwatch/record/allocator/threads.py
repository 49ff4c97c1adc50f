"""Hear the allocator in the threads of Python that start while the block is open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNS_A_THREAD = "_bootstrap_inner"
"""The method of `threading.Thread` in which a thread of Python spends its life, whatever its class."""


class ThreadLogs(Protocol):
    """Logs of the allocator's events, one for each thread."""

    def enter_thread(self, thread: int, /) -> bool:
        """Hear this thread, whose events carry a number; return False if it cannot be heard."""

    def leave_thread(self) -> None:
        """Hear this thread no longer."""


class StartedThreads:
    """Have a log in every thread that starts between `start` and `stop`.

    Args:
        names: receives the name of each thread, at its number; two threads never have the same.
        logs: makes the logs; None where nothing can be heard.

    Attributes:
        before: how many threads ran already at the start, beside the one that called it.
        unheard: how many have started that have no log.
    """

    def __init__(self, names: list[str], logs: ThreadLogs | None) -> None:
        self.before = self.unheard = 0
        self._names = names
        self._logs = logs
        self._numbering = threading.Lock()
        self._patches = Patches()

    def start(self) -> None:
        """Begin to enter new threads."""
        self.before = threading.active_count() - 1
        if hasattr(threading.Thread, _RUNS_A_THREAD):
            self._patches.put(threading.Thread, _RUNS_A_THREAD, self._run)

    def stop(self) -> None:
        """Enter no more; a log leaves a thread that runs on when that ends, or at its next allocation."""
        self._patches.take_off()

    def _run(self, run: Callable[..., Any], thread: threading.Thread) -> Any:
        logs = self._enter(thread.name)
        if logs is None:
            return run(thread)
        try:
            return run(thread)
        finally:
            logs.leave_thread()

    def _enter(self, name: str) -> ThreadLogs | None:
        """Number this thread and give it a log; return what takes that off again."""
        with self._numbering:
            number = len(self._names)
            self._names.append(name if name not in self._names else f"{name} #{number}")
            if self._logs is not None and self._logs.enter_thread(number):
                return self._logs
            self.unheard += 1
            return None
