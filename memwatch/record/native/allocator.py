"""The allocator's own events without kineto: c10's reports, as they come, in each thread that has a log.

There is nothing to wait for, so a window ends wherever a flush wants it to, in backward too, and an event
takes 48 bytes where kineto keeps kilobytes for an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE
from memwatch.record.allocator.log_level import set_log_level
from memwatch.record.backend import Window
from memwatch.record.clock import ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.packed import IntArray
    from memwatch.record.backend import Block
    from memwatch.record.native.extension import Extension


class NativeAllocatorEvents:
    """Receive the events where a profiler of each thread would receive them."""

    hears_each_thread: Final = True

    def __init__(self, extension: Extension, block: Block) -> None:
        self._extension = extension
        self._native = extension.Allocator()
        self._block = block
        self._start_ticks = self._start_op = self.lost_events = 0
        self.is_open = False

    def open(self) -> bool:
        """Begin a window; return False where something else stands in the place of a torch profiler."""
        self.is_open = self._native.open()
        self._start_ticks, self._start_op = ticks(), self._block.op_counter[0]
        return self.is_open

    def close(self) -> list[Window]:
        """End the window, listen no more, and return the window."""
        self._native.close()
        self.is_open = False
        return self._windows()

    def memory_ran_out(self) -> None:
        """Do nothing: the log makes room ahead."""

    def is_short_of_memory(self) -> bool:
        """Return False: the log counts the events for which it has no room."""
        return False

    def drop(self) -> None:
        """Listen no more."""
        self._native.drop()
        self.is_open = False

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next."""
        return self._windows()

    def forget_in_child(self) -> None:
        """Be off in a forked child."""
        self._native.drop()
        set_log_level(None)

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Receive the events of this thread too, with its number; return None where a torch profiler hears it."""
        return self._native.leave_thread if self._native.enter_thread(thread) else None

    def leave_thread(self) -> bool:
        """Receive no more events of this thread; return whether they were received."""
        return self._native.leave_thread()

    def _windows(self) -> list[Window]:
        """Return what was heard since the last window began; the next begins now, so no event is outside.

        If memory ran out meanwhile, the window ends before the first event that was lost.
        """
        start_ticks, start_op = self._start_ticks, self._start_op
        events = None
        try:
            end_ticks = ticks()
            events, lost, lost_since_ticks = self._native.take()
            self._start_ticks, self._start_op = end_ticks, self._block.op_counter[0]
            self.lost_events += lost
            return [self._window(start_ticks, lost_since_ticks if lost else end_ticks, start_op, events)]
        except MemoryError:
            self.lost_events += 0 if events is None else len(events)
            return []

    def _window(self, start_ticks: int, end_ticks: int, start_op: int, events: IntArray) -> Window:
        clock, strings = self._block.clock, self._block.strings
        bounds = np.array([start_ticks, end_ticks])
        start_ns, end_ns = clock.to_ns(bounds).tolist()
        device = _named(events[:, 3], lambda number: strings(self._extension.device_name(number)))
        names = self._block.thread_names
        thread = _named(events[:, 4], lambda number: NONE if number == NONE else strings(names[number]))
        rows = np.column_stack([clock.to_ns(events[:, 0]), events[:, 1:3], device, thread, events[:, 5]])
        return Window(start_ns, end_ns, start_op, rows)


def _named(numbers: IntArray, name: Callable[[int], int]) -> IntArray:
    """Return what `name` gives for each number; it is asked once for each that occurs."""
    found, at = np.unique(numbers, return_inverse=True)
    named: IntArray = np.array([name(number) for number in found.tolist()], dtype=np.int64)[at]
    return named
