"""Let a signal arrive at the n-th line that memwatch runs, and follow the handler's exception.

A trace function counts the lines. It must not make the signal arrive itself, because then the handler would run
within the trace function: Python runs handlers at calls and loops of whatever Python code comes next. So the signal
is sent by a chain of C functions when the frame of the trace function is gone, and tracing is off by then.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import os
import signal
import sys
import weakref

import memwatch

FOLDER = os.path.dirname(memwatch.__file__) + os.sep
SIGNAL = signal.SIGUSR1
_GOLDEN_RATIO = 0.618034  # its multiples, without their whole parts, fill the range from 0 to 1 evenly


class Marker:
    """Dies with the frame of the trace function."""


class Shots:
    """Count the lines of memwatch in the calls of a function, or send the signal at one of them.

    Attributes:
        fired: how many times the handler has run.
        where: the file and line of the interrupted code, for each of them.
    """

    def __init__(self, error_classes):
        self.fired = 0
        self.where = []
        self._classes = itertools.cycle(error_classes)
        self._send = map(_thread.interrupt_main, itertools.repeat(SIGNAL))
        self._dying = None
        self._count, self._at = 0, None

    def handle(self, number, frame):
        """Raise, as the handler of a time limit does."""
        self.fired += 1
        self.where.append((frame.f_code.co_filename, frame.f_lineno))
        raise next(self._classes)("raised by the handler")

    def shoot_often(self, function, count, at_end=lambda: None):
        """Call a function with the signal at lines from all over it; return how many exceptions it raised.

        Args:
            function: the function to call.
            count: how many times.
            at_end: called after each.
        """
        lines = self._lines_of(function)
        reached = 0
        for shot in range(count):
            error = self._shoot(function, 1 + int(shot * _GOLDEN_RATIO % 1 * lines))
            reached += error is not None
            lines = self._count if error is None else lines  # later calls may run fewer lines
            at_end()
        return reached

    def _lines_of(self, function):
        """Return how many lines of memwatch a call runs."""
        self._count, self._at = 0, None
        self._traced(function)
        return self._count

    def _shoot(self, function, at):
        """Call a function with the signal at a line; return its exception or None."""
        self._count, self._at = 0, at
        before = self.fired
        try:
            self._traced(function)
            for _ in range(3):  # a handler may be due still
                pass
        except Exception as error:
            if self.fired == before:
                raise
            return error
        return None

    def _traced(self, function):
        sys.settrace(self._trace)
        try:
            function()
        finally:
            sys.settrace(None)

    def _trace(self, frame, event, arg):
        return self._trace_line if frame.f_code.co_filename.startswith(FOLDER) else None

    def _trace_line(self, frame, event, arg):
        if event == "line":
            self._count += 1
            if self._count == self._at:
                sys.settrace(None)
                marker = Marker()
                # `next` takes the reference that it is given for its default
                self._dying = weakref.ref(marker, functools.partial(next, self._send))
        return self._trace_line
