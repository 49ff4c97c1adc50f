"""Threads: record the allocator's events of Python threads that start in the block, and run a task repeatedly."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import functools
import multiprocessing.pool
import sys
import threading
import time
from types import FunctionType
from typing import TYPE_CHECKING, Final, Protocol

from memwatch.heap.classes import is_a
from memwatch.heap.frames import thread_name
from memwatch.heap.names import instance_dict
from memwatch.own_code import OwnThread, is_program_code
from memwatch.patches import Patches
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_END_WITHIN_S: Final = 1.0
"""Seconds that the end of a block waits for a running write. The disk may not answer. A guess."""


class Timer:
    """Calls a function repeatedly in a thread of its own. Errors of the function are dropped."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = [act]
        self._done: Final = threading.Event()
        # a stopped thread may run on for a while, and it must not keep the objects of `act` alive
        target = functools.partial(_repeat, self._done, seconds, self._act)
        self._to_start = [OwnThread(target=target, name="memwatch-flush", daemon=True)]
        self._started: list[threading.Thread] = []

    def start(self) -> None:
        """Start the thread, unless it was started or stopped before. Any thread may call this."""
        with suppress(IndexError):
            thread = self._to_start.pop()
            thread.start()
            self._started.append(thread)

    def stop(self) -> None:
        """Stop for good, and release the function. Wait for the thread for a short time."""
        self._to_start.clear()
        self._act.clear()
        self._done.set()
        for thread in self._started:
            thread.join(_END_WITHIN_S)


def _repeat(done: threading.Event, seconds: float, to_call: list[Callable[[], None]]) -> None:
    while not done.wait(seconds):
        with contextlib.suppress(Exception):
            to_call[0]()  # no variable holds the function, so that this frame does not keep it alive


def cpu_time_ns(native_id: int | None) -> int | None:
    """Return the processor time of a thread. None if the thread has ended or the system cannot tell.

    The number of a thread's clock is part of Linux's interface (`CPUCLOCK_PERTHREAD` and `CPUCLOCK_SCHED`).
    `pthread_getcpuclockid` may crash for a thread that has just ended, so it is not used.
    """
    if not sys.platform.startswith("linux") or native_id is None:
        return None
    try:
        return time.clock_gettime_ns(~native_id << 3 | 6)
    except OSError as error:
        pass_on(error)
        return None


_RUNS_A_THREAD: Final = "_bootstrap_inner"
"""The method of `threading.Thread` that runs for the whole life of a Python thread, whatever its class."""

_WORKERS: Final = tuple(
    function.__code__
    for function in (
        getattr(concurrent.futures.thread, "_worker", None),
        getattr(multiprocessing.pool, "worker", None),
    )
    if isinstance(function, FunctionType)
)
"""The functions that pool threads run, also while they wait for work."""


class ThreadLogs(Protocol):
    """Logs of the allocator's events; each thread has its own."""

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Record the events of this thread under a number. Return the function that ends this, or None on failure."""


def name_of(thread: threading.Thread) -> str:
    """Return the name of a thread without running code of the program. The thread may not be ready for that."""
    return thread_name(thread) or "unnamed"


def _at_work(threads: list[threading.Thread]) -> list[int | None]:
    """Return the system's numbers of the threads that run the program's code or wait for work in a pool."""
    frames = sys._current_frames()
    try:
        ids = [instance_dict(each) or {} for each in threads]
        return [each.get("_native_id") for each in ids if _is_at_work(frames.get(each.get("_ident") or 0))]
    finally:
        frames.clear()  # it contains this call's own frame, which would make a cycle


def _is_at_work(frame: FrameType | None) -> bool:
    """Return True for a thread that may run the program's code. Threads of libraries, such as tqdm's, do not."""
    while frame is not None:
        code = frame.f_code
        if code in _WORKERS or is_program_code(code.co_filename):
            return True
        frame = frame.f_back
    return False


class StartedThreads:
    """Put a log on every thread that starts between `start` and `stop`.

    Args:
        names: receives the name of each thread at the index of its number. Names are unique.
        logs: makes the logs; None if this torch lacks allocator events.
        on_log: called in each thread that got a log.

    Attributes:
        before: how many other threads of the program ran already at the start.
        unheard: how many threads have started without a log.
    """

    def __init__(
        self, names: list[str], logs: ThreadLogs | None, on_log: Callable[[], None] = lambda: None
    ) -> None:
        self.before = self.unheard = 0
        self._at_work_before: list[tuple[int | None, int | None]] = []
        self._stopped_at_work = 0
        self._names = names
        self._taken = set(names)
        self._logs = logs
        self._on_log = on_log
        self._numbering = threading.Lock()
        self._patches = Patches()

    @property
    def at_work_before(self) -> int:
        """How many of the threads in `before` may work for the program and have run on a processor since the start.

        An idle worker of a pool allocates nothing.
        """
        ran = (cpu_ns is None or cpu_time_ns(thread) != cpu_ns for thread, cpu_ns in self._at_work_before)
        return self._stopped_at_work + sum(ran)

    @property
    def meta(self) -> dict[str, int]:
        """The counts for the metadata of the capture."""
        return {
            "threads_before": self.before,
            "threads_at_work_before": self.at_work_before,
            "threads_unheard": self.unheard,
        }

    def start(self) -> None:
        """Begin to put logs on new threads."""
        here = threading.current_thread()
        others = [each for each in threading.enumerate() if each is not here and not is_a(each, OwnThread)]
        self.before = len(others)
        self._at_work_before = [(thread, cpu_time_ns(thread)) for thread in _at_work(others)]
        if hasattr(threading.Thread, _RUNS_A_THREAD):
            self._patches.put_around(threading.Thread, _RUNS_A_THREAD, self._enter)

    def stop(self) -> None:
        """Stop. A thread that runs on loses its log at its next allocation or at its end."""
        self._patches.take_off()
        self._stopped_at_work = self.at_work_before
        self._at_work_before = []

    def _enter(self, thread: threading.Thread) -> Callable[[], object] | None:
        """Number this thread and give it a log. Return the function that removes the log."""
        if is_a(thread, OwnThread):
            return None
        leave = None
        # the starting thread waits until this thread runs, so an error must not stop it
        with suppress(Exception):
            number = self._number(name_of(thread))
            leave = None if self._logs is None else self._logs.enter_thread(number)
            if leave is not None:
                self._on_log()
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
