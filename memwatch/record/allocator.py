"""Record every allocation and free of the block's threads, as the allocator itself reports them, to the byte.

The events come in windows of time. A window ends when its rows are emitted, and the next one begins. torch has one
profiler at a time, so if the program starts one, memwatch stops receiving events.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch._torch.profiler import STARTERS, is_running, log_level_flag
from memwatch.patches import Patches
from memwatch.record.harmless import uninterrupted
from memwatch.record.tables.rows import Rows
from memwatch.record.threads import name_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable
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


LOG_ERRORS_ONLY: Final = 2  # c10's log level
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
