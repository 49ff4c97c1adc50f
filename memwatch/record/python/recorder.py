"""The Python recorder: its backend, the walk of the call stack, and the allocator's events from kineto."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.autograd import ENGINE_CODE, NO_TASK, current_graph_task_id
from memwatch._torch.profiler import (
    EVENTS_WORK,
    drop_allocator_events,
    is_allocation,
    start_allocator_events,
    stop_allocator_events,
    without_kineto_lines,
)
from memwatch.capture.schema import NONE
from memwatch.devices import devices_in_use
from memwatch.record.backend import Window
from memwatch.record.clock import ticks
from memwatch.record.python.ledger import PythonLedger
from memwatch.record.python.ops import PythonOpRecorder, key_works
from memwatch.record.python.packs import PythonPacker
from memwatch.record.tables.storages import Storages
from memwatch.reserve import Reserve
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from memwatch.capture.columns import IntArray
    from memwatch.record.backend import AllocatorEvents, Backend, Block, CallContext, CaptureStack, Listener
    from memwatch.record.tables.rows import Stacks

_MAX_DEPTH: Final = 128
"""Frames of one call stack that are recorded. A guess."""
_SENTINEL_BYTES: Final = 7919
_SENTINELS: Final = 8
"""Each window begins and ends with blocks of this size, in bytes, at known times. The size is an unusual prime."""
_RESERVE_BYTES: Final = 16 << 20
"""Bytes for the frees that follow when memory runs out. kineto takes 64 KiB per 1,024 events. A guess."""


class StackWalker:
    """Walk the frames of the running thread. `Stacks` numbers the result."""

    def __init__(self, stacks: Stacks) -> None:
        self._enabled = stacks.enabled
        self._bounds = stacks.bounds
        self._intern = stacks.intern
        self._last: dict[tuple[int, int, int], tuple[int, tuple[tuple[CodeType, int], ...]]] = {}
        self._task = self._task_stack = NONE

    def capture(self, outer: int, task: int, depth: int = 3) -> int:
        """Return the number of the running call stack; see `memwatch.record.backend.CaptureStack`.

        Args:
            outer: id of the stack of the module call that is running, -1 outside any.
            task: id of the autograd graph task that is running, -1 outside backward.
            depth: frames to leave out, counted from this one.
        """
        if not self._enabled:
            return NONE
        try:
            frame: Any = sys._getframe(depth)
        except ValueError as error:  # an op of a thread that C++ started, as torch.jit.fork does
            pass_on(error)
            return NONE
        engine = task != NONE and frame.f_code is ENGINE_CODE
        if engine and task == self._task:
            return self._task_stack
        here = (id(frame.f_code), frame.f_lasti, outer)
        last = self._last.get(here)
        if last is not None:
            caller = frame.f_back
            for code, offset in last[1]:
                if caller is None or caller.f_code is not code or caller.f_lasti != offset:
                    break
                caller = caller.f_back
            else:
                if caller is None or id(caller.f_code) in self._bounds:
                    return last[0]
        number = self._walk(frame, outer, here)
        if engine:
            self._task, self._task_stack = task, number
        return number

    def _walk(self, innermost: Any, outer: int, here: tuple[int, int, int]) -> int:
        """Follow the callers to the boundary, and remember them for the next op at the same place."""
        frame = innermost
        key, callers = [outer], []
        for _ in range(_MAX_DEPTH):
            if frame is None:
                key[0] = NONE
                break
            code, offset = frame.f_code, frame.f_lasti
            if id(code) in self._bounds:
                break
            key += (id(code), offset)
            callers.append((code, offset))
            frame = frame.f_back
        else:
            key[0] = NONE
        number = self._intern(tuple(key), innermost)
        self._last[here] = (number, tuple(callers[1:]))
        return number


class PythonBackend:
    """The recorder written in Python."""

    name: Final = "python"

    def key_works(self) -> bool:
        """Return True if Python kernels on the free dispatch key see the ops. The probe runs once."""
        return key_works()

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return the receiver of the allocator's events, or None if this torch provides none."""
        return _KinetoEvents(block) if EVENTS_WORK else None

    def recorder(self, block: Block, stacks: Stacks) -> PythonRecorder:
        """Return a recorder of one block."""
        return PythonRecorder(block, stacks)


class PythonRecorder:
    """Makes the parts that record one block."""

    def __init__(self, block: Block, stacks: Stacks) -> None:
        self._block = block
        self._ledger = PythonLedger()
        self.storages = Storages(block.strings, block.op_counter, self._ledger, estimate=block.is_estimate)
        self.capture_stack: CaptureStack = StackWalker(stacks).capture

    def ops(self, context: CallContext, listener: Listener) -> PythonOpRecorder:
        """Return the recorder of ops."""
        return PythonOpRecorder(self._block, self.storages, self.capture_stack, context, listener)

    def packer(self, context: CallContext) -> PythonPacker:
        """Return the packer of the tensors that autograd saves."""
        return PythonPacker(self.storages, self._ledger, context, self._block.op_counter)


BACKEND: Final[Backend] = PythonBackend()


class _KinetoEvents:
    """Receive the allocator's events of this thread by starting and stopping torch's profiler."""

    has_log_per_thread: Final = False

    def __init__(self, block: Block) -> None:
        self._block = block
        self._start = self._start_sentinel = self._start_op = self.lost_events = 0
        self._reserve = Reserve(_RESERVE_BYTES)
        self.is_open = False
        self._leave_scope: Callable[[], object] = lambda: None

    def open(self) -> bool:
        """Begin a window; return True."""
        with without_kineto_lines():
            self._leave_scope = start_allocator_events(of_accelerators=len(devices_in_use()) > 1)
        self.is_open = True
        self._reserve.take()
        self._start, self._start_sentinel = _sentinels()
        self._start_op = self._block.op_counter[0]
        return True

    def close(self) -> list[Window]:
        """End the window and return it. Return an empty list if its events were lost."""
        self._reserve.release()
        end, end_sentinel = _sentinels()
        self._leave_scope()
        with without_kineto_lines():
            roots = stop_allocator_events()
        self.is_open = False
        start_ns, end_ns = self._block.clock.to_ns(self._start), self._block.clock.to_ns(end)
        events = self._events(roots)
        ours = np.flatnonzero(events[:, 2] == _SENTINEL_BYTES)
        if len(ours) < 2 * _SENTINELS:
            self._block.note("allocator", "torch's profiler lost the allocator events of a part of the block")
            return []
        events = _in_our_time(events, ours, (start_ns, self._start_sentinel), (end_ns, end_sentinel))
        return [Window(start_ns, end_ns, self._start_op, events)]

    def memory_ran_out(self) -> None:
        """Make room for kineto."""
        self._reserve.release()

    def is_short_of_memory(self) -> bool:
        """Return True if memory is about to run out, and the window can end here.

        A destructor reports each free. If memory is too short for the event, kineto throws in the destructor, which
        ends the process.
        """
        if current_graph_task_id() != NO_TASK:
            return False
        probe = Reserve(_RESERVE_BYTES)
        is_short = not (self._reserve.take() and probe.take())
        probe.release()
        return is_short

    def drop(self) -> None:
        """End the window, in its own thread, after a profiler of another thread took over kineto's session."""
        self._leave_scope()
        with without_kineto_lines():
            drop_allocator_events()
        self.is_open = False

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next one. None in backward, whose end would end that one."""
        if current_graph_task_id() != NO_TASK:
            return None
        windows = self.close()
        try:
            self.open()
        except Exception as error:  # the events so far are worth more than this error
            pass_on(error)
            self._block.note(
                "allocator", f"allocator events end here, for torch's profiler did not start: {error}"
            )
        return windows

    def highs(self) -> dict[int, tuple[int, int]]:
        """Return nothing, because kineto keeps its events until the window ends."""
        return {}

    def enter_thread(self, thread: int, /) -> None:  # the native log has the same method
        """Return None, because kineto records only the block's thread."""

    def leave_thread(self) -> bool:
        """Return False, because no thread was entered."""
        return False

    def forget_in_child(self) -> None:
        """Let this forked child end without C++ destructors. kineto's would wait for a thread that only the parent has.

        The events cannot be switched off here, so c10's log level stays raised for blocks that the parent made.
        """
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):
            libc.on_exit(libc._exit, None)

    def _events(self, roots: list[Any]) -> np.ndarray[Any, Any]:
        devices: dict[Any, int] = {}
        rows: list[tuple[int, int, int, int, int, int]] = []
        waiting = roots[::-1]
        while waiting:
            node = waiting.pop()
            if is_allocation(node):
                fields = node.extra_fields
                device = fields.device
                if device not in devices:
                    devices[device] = self._block.strings(str(device))
                rows.append(
                    (
                        node.start_time_ns, fields.ptr, fields.alloc_size, devices[device],
                        NONE,  # kineto records one thread
                        fields.total_reserved,
                    )
                )  # fmt: skip
            waiting.extend(node.children[::-1])
        events = np.array(rows, dtype=np.int64).reshape(-1, 6)
        return events[np.argsort(events[:, 0], kind="stable")]


def _sentinels() -> tuple[int, int]:
    """Allocate and free blocks of a special size. Return the ticks and the number of the best timed block."""
    timed = []
    for number in range(_SENTINELS):
        before = ticks()
        torch.UntypedStorage(_SENTINEL_BYTES)
        after = ticks()
        timed.append((after - before, (before + after) // 2, number))
    _, middle, number = min(timed)
    return middle, number


def _in_our_time(events: IntArray, made: IntArray, first: tuple[int, int], last: tuple[int, int]) -> IntArray:
    """Remove the sentinels from a window's events, and use them to convert all times to the recorder's clock.

    kineto converts ticks to nanoseconds with another straight line in each window. It drifts from our line by
    microseconds in a minute. Two sentinels give two points of both lines.

    Args:
        events: rows of the table `allocator`, times in kineto's nanoseconds.
        made: the rows of the sentinels' allocations.
        first: time in our nanoseconds of the best sentinel at the start, and its number.
        last: the same at the end.
    """
    first_ns, last_ns = events[made[first[1]], 0], events[made[last[1] - _SENTINELS], 0]
    slope = (last[0] - first[0]) / max(int(last_ns - first_ns), 1)
    events[:, 0] = first[0] + ((events[:, 0] - first_ns) * slope).astype(np.int64)
    # not always the next event: threads may allocate between
    freed = np.flatnonzero(events[:, 2] == -_SENTINEL_BYTES)
    ours = [rows for each in (made, freed) for rows in (each[:_SENTINELS], each[-_SENTINELS:])]
    return np.delete(events, np.concatenate(ours), axis=0)
