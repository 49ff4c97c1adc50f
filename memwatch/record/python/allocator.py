"""The allocator's own account: every allocation and free on this thread, to the byte.

torch's kineto profiler records c10's memory events with address, signed bytes and a time stamp of the
same counter that the op rows carry, so no mark per op is needed: with no op scope enabled it costs nothing
but the events. The events exist only after a stop, so the channel works in windows. A program that starts
a torch profiler itself gets it: the channel steps aside first and says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _EventType,
    _ExperimentalConfig,
)
from torch.autograd import profiler, profiler_legacy

from memwatch.capture.schema import NONE
from memwatch.record.clock import Clock, ticks
from memwatch.record.patches import StandIns
from memwatch.record.tables.rows import Rows
from memwatch.record.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.capture.packed import IntArray
    from memwatch.record.tables.strings import Strings

_STARTERS: Final = (
    (profiler, "_prepare_profiler"),
    (profiler, "_enable_profiler"),
    (profiler_legacy, "_enable_profiler_legacy"),
)
_autograd: Any = torch._C._autograd
LOG_ERRORS_ONLY: Final = 2
_SENTINEL_BYTES: Final = 7919
_SENTINELS: Final = 8
"""Blocks of that size, whose times are known, are the first and the last of every window."""


class AllocatorChannel:
    """Record allocator events in windows, on the thread that started it."""

    def __init__(
        self, strings: Strings, clock: Clock, ops_started: list[int], note: Callable[[str, str], None]
    ) -> None:
        self.windows = Rows()
        self.running = False
        self.stepped_aside = False
        self.strings = strings
        self.clock = clock
        self.ops_started = ops_started
        self._note = note
        self.emit: Callable[[Any], None] = lambda rows: None
        self._stand_ins = StandIns()
        self.count = 0

    def start(self, emit: Callable[[Any], None]) -> None:
        """Open the first window; `emit` receives the rows of `allocator` of each closed one as an int64 array."""
        self.emit = emit
        if _autograd._profiler_enabled():
            self.stepped_aside = True
            self._note(
                "allocator", "a torch profiler was already running: allocator events were not recorded"
            )
            return
        for module, name in _STARTERS:
            self._stand_ins.put(module, name, self._program_starts)
        self.open()

    def stop(self) -> None:
        """Close the window and undo every patch."""
        self.close()
        self._stand_ins.take_off()

    def _program_starts(self, profiler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.running:
            with uninterrupted():
                self.close()
            self.stepped_aside = True
            self._note("allocator", "the program started a torch profiler: allocator events end there")
        return profiler(*args, **kwargs)

    def cut(self) -> bool:
        """End the window, emit its events and begin the next; tell whether that could be done here."""
        if torch._C._current_graph_task_id() != NONE:  # what opens a window in backward ends with it
            return False
        self.close()
        self.open()
        return True

    def forget_in_child(self) -> None:
        """Be off in a forked child."""
        if self.running:
            _end_without_destructors()
        self.running = False

    def open(self) -> None:
        """Open a window, unless the channel stepped aside."""
        if self.stepped_aside or self.running:
            return
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        with _quiet():
            _autograd._prepare_profiler(config, {ProfilerActivity.CPU})
            _autograd._enable_profiler(config, {ProfilerActivity.CPU}, {RecordScope.BUILD_FEATURE})
        log_level(LOG_ERRORS_ONLY)
        self._start, self._start_sentinel = _sentinels()
        self._start_op = self.ops_started[0]
        self.running = True

    def close(self) -> None:
        """Close the window and emit its events."""
        if not self.running:
            return
        end, end_sentinel = _sentinels()
        with _quiet():
            result = _autograd._disable_profiler()
        log_level(None)
        self.running = False
        start_ns, end_ns = self.clock.to_ns(self._start), self.clock.to_ns(end)
        events = self._events(result.experimental_event_tree())
        ours = np.flatnonzero(events[:, 2] == _SENTINEL_BYTES)
        if len(ours) < 2 * _SENTINELS:
            self._note("allocator", "torch's profiler lost the allocator events of a part of the block")
            return
        events = _in_our_time(events, ours, (start_ns, self._start_sentinel), (end_ns, end_sentinel))
        if len(events):
            self.emit(events)
        self.windows += (self.count, start_ns, end_ns, self._start_op, self.ops_started[0])
        self.count += 1

    def _events(self, roots: list[Any]) -> np.ndarray[Any, Any]:
        devices: dict[Any, int] = {}
        rows: list[tuple[int, int, int, int, int]] = []
        waiting = roots[::-1]
        while waiting:
            node = waiting.pop()
            if node.tag == _EventType.Allocation:
                fields = node.extra_fields
                device = fields.device
                if device not in devices:
                    devices[device] = self.strings(str(device))
                rows.append((node.start_time_ns, fields.ptr, fields.alloc_size, devices[device], self.count))
            waiting.extend(node.children[::-1])
        events = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return events[np.argsort(events[:, 0], kind="stable")]


def _end_without_destructors() -> None:
    """Let this forked child end without C++ destructors: kineto's would wait for a thread the child has not."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


def _sentinels() -> tuple[int, int]:
    """Allocate and free blocks of a size of their own; return the ticks of the best timed one, and which it was."""
    timed = []
    for number in range(_SENTINELS):
        before = ticks()
        torch.UntypedStorage(_SENTINEL_BYTES)
        after = ticks()
        timed.append((after - before, (before + after) // 2, number))
    _, middle, number = min(timed)
    return middle, number


def _in_our_time(events: IntArray, made: IntArray, first: tuple[int, int], last: tuple[int, int]) -> IntArray:
    """Take the sentinels out of a window's events, and put the rest on the recorder's clock by them.

    kineto turns ticks into nanoseconds by a line of its own for each window, which drifts from ours by
    microseconds in a minute; two sentinels are two points of both lines.

    Args:
        events: rows of the table `allocator`, times in kineto's nanoseconds.
        made: the rows in which the sentinels are made.
        first: time in our nanoseconds of the best sentinel at the start, and its number.
        last: the same at the end.
    """
    first_ns, last_ns = events[made[first[1]], 0], events[made[last[1] - _SENTINELS], 0]
    slope = (last[0] - first[0]) / max(int(last_ns - first_ns), 1)
    events[:, 0] = first[0] + ((events[:, 0] - first_ns) * slope).astype(np.int64)
    freed = np.flatnonzero(
        events[:, 2] == -_SENTINEL_BYTES
    )  # not always the next event: threads may allocate between
    ours = [rows for each in (made, freed) for rows in (each[:_SENTINELS], each[-_SENTINELS:])]
    return np.delete(events, np.concatenate(ours), axis=0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold stderr while kineto prints its `USDT:` lines; everything else written meanwhile is passed on."""
    try:
        saved = os.dup(2)
    except OSError:  # the program closed its stderr: nothing can be printed
        yield
        return
    with open(os.memfd_create("memwatch"), "w+b", buffering=0) as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            held.seek(0)
            rest = b"".join(
                line for line in held.read().splitlines(keepends=True) if not line.startswith(b"USDT:")
            )
            if rest:
                os.write(2, rest)
            os.close(saved)


@functools.cache
def _log_level_flag() -> ctypes.c_int | None:
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


_level_before: list[int] = []


def log_level(level: int | None) -> None:
    """Silence c10's "block of unknown size" log line while a window is open; None puts the level back."""
    flag = _log_level_flag()
    if flag is None:
        return
    if level is not None:
        _level_before.append(flag.value)
        flag.value = max(level, flag.value)
    elif _level_before:
        flag.value = _level_before.pop()
