"""Record the allocator's events in Python threads that start while the block is open.

A thread's time on the processor tells whether it is still running.
"""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing.pool
import sys
import threading
import time
from types import FunctionType
from typing import TYPE_CHECKING, Final, Protocol

from memwatch.heap.class_checks import is_a
from memwatch.heap.frames import thread_name
from memwatch.heap.names import instance_dict
from memwatch.own_code import OwnThread, is_program_code
from memwatch.record.patches import Patches
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def cpu_time_ns(native_id: int | None) -> int | None:
    """Return how long a thread has been on a processor, None if it has ended or the system does not say.

    The number of a thread's clock is part of Linux's interface (`CPUCLOCK_PERTHREAD` and `CPUCLOCK_SCHED`). It is
    not asked for by `pthread_getcpuclockid`, which may crash for a thread that has just ended.
    """
    if not sys.platform.startswith("linux") or native_id is None:
        return None
    try:
        return time.clock_gettime_ns(~native_id << 3 | 6)
    except OSError as error:
        pass_on(error)
        return None


_RUNS_A_THREAD: Final = "_bootstrap_inner"
"""The method of `threading.Thread` in which a thread of Python spends its life, whatever its class."""

_WORKERS: Final = tuple(
    function.__code__
    for function in (
        getattr(concurrent.futures.thread, "_worker", None),
        getattr(multiprocessing.pool, "worker", None),
    )
    if isinstance(function, FunctionType)
)
"""What the threads of Python's pools run while they wait for something to do."""


class ThreadLogs(Protocol):
    """Logs of the allocator's events, one for each thread."""

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Hear this thread, whose events carry a number; return what ends that, None if it cannot be heard."""


def name_of(thread: threading.Thread) -> str:
    """Return the name of a thread; no code of the program's runs, for the thread may not be ready for it."""
    return thread_name(thread) or "unnamed"


def _at_work(threads: list[threading.Thread]) -> list[int | None]:
    """Return the system's numbers of those threads that run the program's code, or wait for work in a pool."""
    frames = sys._current_frames()
    try:
        ids = [instance_dict(each) or {} for each in threads]
        return [each.get("_native_id") for each in ids if _is_at_work(frames.get(each.get("_ident") or 0))]
    finally:
        frames.clear()  # this call's own frame is among them, which would be a cycle


def _is_at_work(frame: FrameType | None) -> bool:
    """Return True for a thread that may run the program's code: those of libraries' own, as of tqdm, do not count."""
    while frame is not None:
        code = frame.f_code
        if code in _WORKERS or is_program_code(code.co_filename):
            return True
        frame = frame.f_back
    return False


class StartedThreads:
    """Have a log in every thread that starts between `start` and `stop`.

    Args:
        names: receives the name of each thread, at its number; two threads never have the same.
        logs: makes the logs; None where nothing can be heard.
        heard: called whenever a thread has got a log, in that thread.

    Attributes:
        before: how many threads of the program's ran already at the start, beside the one that called it.
        unheard: how many have started that have no log.
    """

    def __init__(
        self, names: list[str], logs: ThreadLogs | None, heard: Callable[[], None] = lambda: None
    ) -> None:
        self.before = self.unheard = 0
        self._at_work_before: list[tuple[int | None, int | None]] = []
        self._stopped_at_work = 0
        self._names = names
        self._taken = set(names)
        self._logs, self._heard = logs, heard
        self._numbering = threading.Lock()
        self._patches = Patches()

    @property
    def at_work_before(self) -> int:
        """How many of those threads run the program's code, or a pool's work, and were on a processor since then.

        An idle worker of a pool, the program's or torch's own, makes nothing.
        """
        ran = (cpu_ns is None or cpu_time_ns(thread) != cpu_ns for thread, cpu_ns in self._at_work_before)
        return self._stopped_at_work + sum(ran)

    @property
    def meta(self) -> dict[str, int]:
        """The counts, as a capture keeps them."""
        return {
            "threads_before": self.before,
            "threads_at_work_before": self.at_work_before,
            "threads_unheard": self.unheard,
        }

    def start(self) -> None:
        """Begin to enter new threads."""
        here = threading.current_thread()
        others = [each for each in threading.enumerate() if each is not here and not is_a(each, OwnThread)]
        self.before = len(others)
        self._at_work_before = [(thread, cpu_time_ns(thread)) for thread in _at_work(others)]
        if hasattr(threading.Thread, _RUNS_A_THREAD):
            self._patches.put_around(threading.Thread, _RUNS_A_THREAD, self._enter)

    def stop(self) -> None:
        """Enter no more; a log leaves a thread that runs on when that ends, or at its next allocation."""
        self._patches.take_off()
        self._stopped_at_work, self._at_work_before = self.at_work_before, []

    def _enter(self, thread: threading.Thread) -> Callable[[], object] | None:
        """Number this thread and give it a log; return what takes that off again."""
        if is_a(thread, OwnThread):
            return None
        leave = None
        with suppress(Exception):  # whoever started the thread waits for it to come up
            number = self._number(name_of(thread))
            leave = None if self._logs is None else self._logs.enter_thread(number)
            if leave is not None:
                self._heard()
        if leave is None:
            with self._numbering:
                self.unheard += 1
        return leave

    def _number(self, name: str) -> int:
        with self._numbering:
            number = len(self._names)
            name = name if name not in self._taken else f"{name} #{number}"
            self._taken.add(name)
            self._names.append(name)
            return number
