"""The Python recorder: its backend, and the walk of the call stack."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.autograd import ENGINE_CODE
from memwatch._torch.profiler import EVENTS_WORK
from memwatch.capture.schema import NONE
from memwatch.record.python.kineto import KinetoEvents
from memwatch.record.python.ledger import PythonLedger
from memwatch.record.python.ops import PythonOpRecorder, key_works
from memwatch.record.python.packs import PythonPacker
from memwatch.record.tables.storages import Storages
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from types import CodeType

    from memwatch.record.backend import AllocatorEvents, Backend, Block, CallContext, CaptureStack, Listener
    from memwatch.record.tables.rows import Stacks

_MAX_DEPTH: Final = 128
"""Frames of one call stack that are recorded. A guess."""


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
        return KinetoEvents(block) if EVENTS_WORK else None

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
