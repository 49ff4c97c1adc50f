"""Record every allocation and free of the block's threads, as the allocator itself reports them, to the byte.

The events come in windows of time. A window ends when its rows are emitted, and the next one begins. torch has one
profiler at a time, so if the program starts one, memwatch stops receiving events. Each Python thread that starts in the
block gets a log of its own (`StartedThreads`).
"""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing.pool
import sys
import threading
import time
from types import FunctionType
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch._torch.profiler import STARTERS, is_running, log_level_flag
from memwatch.heap.classes import is_a
from memwatch.heap.frames import thread_name
from memwatch.heap.names import instance_dict
from memwatch.own_code import OwnThread, is_program_code
from memwatch.patches import Patches
from memwatch.record.harmless import uninterrupted
from memwatch.record.tables.rows import Rows
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from memwatch.capture.columns import IntArray
    from memwatch.record.backend import AllocatorEvents, Window
    from memwatch.record.tables.rows import OpCounter

_MOST_WAITING: Final = 50_000
"""Rows of `WaitingEvents` that make a write due. A write copies them, so they must not become millions. A guess."""


class WaitingEvents:
    """Rows of the table `allocator` that wait for the next flush, so that one write of the file holds both."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = []

    def add(self, rows: IntArray) -> bool:
        """Add rows. Return whether so many wait that they must be written now."""
        self._rows.append(rows)
        return sum(map(len, self._rows)) >= _MOST_WAITING

    def take(self) -> list[IntArray]:
        """Remove and return all rows, as a list of at most one array."""
        if not self._rows:
            return []
        taken = [np.concatenate(self._rows)]  # first: if memory runs out here, the rows stay
        self._rows = []
        return taken


LOG_ERRORS_ONLY: Final = 2
"""c10's log level without warnings."""
_levels_before: list[int] = []


def set_log_level(level: int | None) -> None:
    """Raise c10's log level while a window is open, to silence its line "block of unknown size". None restores it."""
    flag = log_level_flag()
    if flag is None:
        return
    if level is not None:
        _levels_before.append(flag.value)
        flag.value = max(level, flag.value)
    elif _levels_before:
        flag.value = _levels_before.pop()


_ROWS_AT_ONCE: Final = 50_000
"""Rows of one window that are emitted together. Whoever gets them makes Python objects, which need many times the
memory of a row. A guess."""


class AllocatorChannel:
    """Pass on a backend's events in windows of time, on the thread that started the block.

    | state | running | _lost | left by |
    | --- | --- | --- | --- |
    | idle: before the block, or after it | False | False | `start` opens the first window |
    | open: a window receives events | True | False | `stop`, `check_memory` and a profiler in this thread close it |
    | lost: a profiler in another thread took the events | False | True | this thread, which alone can end the window |

    `cut` goes from one open window to the next, or to idle if the next one does not open.

    Attributes:
        windows: rows of the table `windows`.
        running: whether a window is open.
        stepped_aside: whether events are missing, from the start of the block or from some time on. For example, a
            torch profiler of the program was running, or the program started one, or memory was short.
    """

    def __init__(
        self, events: AllocatorEvents, op_counter: OpCounter, note: Callable[[str, str], None]
    ) -> None:
        self.windows = Rows()
        self.running = False
        self.stepped_aside = False
        self._events = events
        self._op_counter = op_counter
        self._note = note
        self._emit: Callable[[IntArray], None] = lambda rows: None
        self._patches = Patches()
        self._thread = threading.get_ident()
        self._cutting = threading.Lock()  # the timer's thread cuts windows too
        self._lost = False  # whether a window still has to be ended, though its events are gone
        self._count = self._lost_events = 0

    @property
    def has_log_per_thread(self) -> bool:
        """Whether each thread has a log of its own. Then `check_memory` is not needed."""
        return self._events.has_log_per_thread

    @property
    def lost_events(self) -> int:
        """How many events were lost because memory had run out."""
        return self._lost_events + self._events.lost_events

    def highs(self) -> dict[int, tuple[int, int]]:
        """Return the most live bytes of each device so far, and when in ticks; empty if no events are received."""
        return self._events.highs() if self.running else {}

    def start(self, emit: Callable[[IntArray], None]) -> None:
        """Open the first window. When a window ends, `emit` gets its rows of the table `allocator`."""
        self._emit = emit
        if is_running():
            self.stepped_aside = True
            self._note(
                "allocator", "a torch profiler was already running: allocator events were not recorded"
            )
            return
        if not self._open():
            self.stepped_aside = True
            self._note(
                "allocator",
                "something else hears the allocator in this thread: its events were not recorded",
            )
            return
        for module, name in STARTERS:
            self._patches.put(module, name, self._on_profiler_start)

    def stop(self) -> None:
        """Close the window and undo every patch."""
        self._close()
        self._drop()
        self._patches.take_off()

    def cut(self) -> bool:
        """End the window, emit its events and begin the next window. Return False if a window cannot end here."""
        with self._cutting:
            windows = self._events.cut() if self.running else None
            if windows is None:
                return False
            self._write(windows)
            if not self._events.is_open:
                self.running = False
                self.stepped_aside = True
                set_log_level(None)
            return True

    def cut_from_elsewhere(self) -> None:
        """End the window from another thread and begin the next one, if the backend allows it.

        The thread of the block may wait for other threads. Then it runs no op that would end a window, while the other
        threads make events.
        """
        if self._events.has_log_per_thread:
            self.cut()

    def memory_ran_out(self) -> None:
        """Make room for the next events, because an op failed and memory may have run out."""
        self._events.memory_ran_out()

    def check_memory(self) -> None:
        """Stop recording events if there may soon be no memory for them."""
        if self.running and self._events.is_short_of_memory():
            self._close()
            self.stepped_aside = True
            self._note("allocator", "memory is short: allocator events end there")

    def forget_in_child(self) -> None:
        """Switch everything off in a forked child."""
        self._cutting = threading.Lock()  # another thread of the parent may hold it
        if self.running or self._lost:
            self._events.forget_in_child()
        self.running = self._lost = False

    def _on_profiler_start(self, profiler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_here = threading.get_ident() == self._thread
        if is_here:
            self._drop()
        if not self.running:
            pass  # all windows are closed
        elif self._events.has_log_per_thread and not is_here:
            if self._events.leave_thread():
                name = name_of(threading.current_thread())
                self._note(
                    "allocator",
                    f"the program started a torch profiler in thread {name!r}: its allocator events end there",
                )
        else:
            with uninterrupted():
                if is_here:
                    self._close()
                else:
                    self._lose()
            self.stepped_aside = True
            self._note("allocator", "the program started a torch profiler: allocator events end there")
        return profiler(*args, **kwargs)

    def _open(self) -> bool:
        self.running = self._events.open()
        if self.running:
            set_log_level(LOG_ERRORS_ONLY)
        return self.running

    def _close(self) -> None:
        with self._cutting:
            if self.running:
                self.running = False
                try:
                    windows = self._events.close()
                except (MemoryError, RuntimeError) as error:  # for example because memory has run out
                    pass_on(error)
                    self._note(
                        "allocator", f"the allocator's events of a part of the block are lost: {error}"
                    )
                    windows = []
                finally:
                    set_log_level(None)
                self._write(windows)

    def _lose(self) -> None:
        self.running = False
        self._lost = True
        self._note("allocator", "torch's profiler lost the allocator events of a part of the block")

    def _drop(self) -> None:
        if self._lost:
            self._lost = False
            self._events.drop()
            set_log_level(None)

    def _write(self, windows: list[Window]) -> None:
        for window in windows:
            self._write_one(window)

    def _write_one(self, window: Window) -> None:
        number = self._count
        self._count += 1  # also if memory runs out below: some events may already have this number
        try:
            self._emit_window(number, window)
        except MemoryError:  # the window is left out of `windows`, so no figure relies on it
            self._lost_events += len(window.events)

    def _emit_window(self, number: int, window: Window) -> None:
        for start in range(0, len(window.events), _ROWS_AT_ONCE):
            events = window.events[start : start + _ROWS_AT_ONCE]
            self._emit(np.column_stack([events, np.full(len(events), number)]))
        self.windows += number, window.start_ns, window.end_ns, window.start_op, self._op_counter[0]


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
        logs: the backend's events, which put a log on a thread. None if this torch lacks allocator events.
        on_log: called in each thread that got a log.

    Attributes:
        before: how many other threads of the program ran already at the start.
        unheard: how many threads have started without a log.
    """

    def __init__(
        self, names: list[str], logs: AllocatorEvents | None, on_log: Callable[[], None] = lambda: None
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
