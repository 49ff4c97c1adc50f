"""The allocator's own account without kineto: c10's reports, as they come.

There is nothing to wait for, so a window ends wherever a flush wants it to, in backward too, and an event
takes 32 bytes where kineto keeps kilobytes for an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.record.clock import Clock, ticks
from memwatch.record.python.allocator import LOG_ERRORS_ONLY, AllocatorChannel, log_level

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.tables.strings import Strings


class NativeAllocatorChannel(AllocatorChannel):
    """Record allocator events by standing where a profiler of this thread would stand."""

    def __init__(
        self, library: Any, strings: Strings, clock: Clock, ops_started: list[int],
        note: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        super().__init__(strings, clock, ops_started, note)
        self._library = library
        self._native = library.Allocator()

    def open(self) -> None:
        """Begin to listen, unless the channel stepped aside."""
        if self.stepped_aside or self.running:
            return
        self._native.open()
        log_level(LOG_ERRORS_ONLY)
        self._begin_window()
        self.running = True

    def close(self) -> None:
        """Emit the events and listen no more."""
        if not self.running:
            return
        self.running = False
        self._native.close()
        log_level(None)
        self._end_window()

    def cut(self) -> bool:
        """Emit the events so far."""
        self._end_window()
        self._begin_window()
        return True

    def forget_in_child(self) -> None:
        """Be off in a forked child."""
        if self.running:
            self._native.close()
            log_level(None)
        self.running = False

    def _begin_window(self) -> None:
        self._start, self._start_op = ticks(), self.ops_started[0]

    def _end_window(self) -> None:
        events = self._native.take()
        times = self.clock.to_ns(np.array([self._start, ticks()]))
        if len(events):
            devices, device = np.unique(events[:, 3], return_inverse=True)
            names = np.array([self.strings(self._library.device_name(int(number))) for number in devices])
            window = np.full(len(events), self.count)
            self.emit(
                np.column_stack([self.clock.to_ns(events[:, 0]), events[:, 1:3], names[device], window])
            )
        self.windows += (self.count, int(times[0]), int(times[1]), self._start_op, self.ops_started[0])
        self.count += 1
