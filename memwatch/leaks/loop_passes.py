"""Count the passes of the program's own loops from the call stacks of its ops.

A program without an optimizer has no mark for the end of a round. Its loops show it. An op shows the instruction that
each running call has reached. If a call has gone back to an earlier instruction, or calls a function again from the
same instruction, a loop of that call has begun another pass.

Python may reuse the memory of a frame for a later call, and frames have no weak references. So memwatch puts a mark
of its own into `f_trace`, which only a debugger reads, and which dies with the frame. While a debugger or a coverage
tool is active, memwatch counts no passes.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch._torch.modules import MODULE_CALL_CODE
from memwatch.own_code import CodeOwner, code_owner, is_memwatch_code, line_at

if TYPE_CHECKING:
    from types import CodeType, FrameType

_WAITS: Final = "JUMP_BACKWARD_NO_INTERRUPT"
"""The jump with which `await` and `yield from` wait: no loop of the program."""


class _Mark:
    """Lies in a frame, and tells it from all others."""

    __slots__ = ()

    def __call__(self, *_event: object) -> None:
        """Trace nothing, in case a debugger starts within the call."""


class _Call(NamedTuple):
    """One running call: the mark in its frame, its code, and the offset that it has reached."""

    mark: object
    code: CodeType
    offset: int


class _Range(NamedTuple):
    """The instructions of a loop, by their offsets: the first one, to which it jumps back, and the last."""

    start: int
    end: int


@dataclass(eq=False)
class Loop:
    """One run of a loop of the program.

    Attributes:
        code: the function or module with the loop.
        range: its instructions.
        depth: number of running calls around the call with the loop.
        passes: number of passes that have begun after the first.
        is_over: True once the call has left it.
    """

    code: CodeType
    range: _Range
    depth: int
    passes: int = 0
    is_over: bool = False

    @property
    def place(self) -> tuple[str, int, str]:
        """The file, the line at which the loop begins, and the function."""
        return self.code.co_filename, line_at(self.code, self.range.start), self.code.co_name


class LoopPasses:
    """Compares the stack of each op with the stack of the previous op."""

    def __init__(self) -> None:
        self._stack: list[_Call] = []
        self._op: object = None
        self._running: dict[tuple[int, int], Loop] = {}  # by depth and first instruction
        self._ranges: dict[int, tuple[CodeType, list[_Range]]] = {}  # by the id of a code, which it keeps
        self._owners: dict[int, bool] = {}

    def note(self, op: object) -> Loop | None:
        """Note an op of this thread, none of a backward; return the loop that has begun another pass with it."""
        before, self._stack = self._stack, _running_calls()
        op_before, self._op = self._op, op
        stack = self._stack
        same = 0  # calls that are still running
        for old, new in zip(before, stack, strict=False):
            if old.mark is not new.mark:
                break
            same += 1
        self._end(same)
        if not same:
            return None
        at, offset_before = same - 1, before[same - 1].offset
        if stack[at].offset > offset_before:
            self._end_left(at, stack[at].offset)
            return None
        if stack[at].offset == offset_before:
            # One instruction may run several ops in C++, hardly the same one twice in a row. It calls one function.
            called_torch = len(before) == len(stack) == same and op is op_before
            called_function = len(before) > same and len(stack) > same
            if not (called_torch or called_function):
                return None
        return self._passed(at, offset_before)

    def _passed(self, depth: int, offset_before: int) -> Loop | None:
        """Count a pass of the innermost loop around both instructions of a call.

        Return the loop if it is the program's.
        """
        call = self._stack[depth]
        found = self._range_of(call.code, call.offset, offset_before)
        if found is None or not self._is_of_program(depth):
            return None
        self._end_left(depth, call.offset)
        loop = self._running.get((depth, found.start))
        if loop is None:
            loop = self._running[depth, found.start] = Loop(call.code, found, depth)
        loop.passes += 1
        return loop

    def _end(self, depth: int) -> None:
        """End the loops of the calls from a depth on: those calls have returned."""
        for key in [key for key in self._running if key[0] >= depth]:
            self._running.pop(key).is_over = True

    def _end_left(self, depth: int, offset: int) -> None:
        """End the loops of a call that it has left by moving on."""
        for key, loop in list(self._running.items()):
            if key[0] == depth and offset > loop.range.end:
                self._running.pop(key).is_over = True

    def _range_of(self, code: CodeType, first: int, last: int) -> _Range | None:
        """Return the innermost loop that has two instructions, the one behind the other."""
        known = self._ranges.get(id(code))
        if known is None:
            known = self._ranges[id(code)] = code, _loops_of(code)
        around = (each for each in known[1] if each.start <= first and last <= each.end)
        return min(around, key=lambda each: each.end - each.start, default=None)

    def _is_of_program(self, depth: int) -> bool:
        """Return True for a call of the program's own code outside a module's forward.

        A forward that goes through its layers is one round of work. It keeps memory of each layer for the backward.
        """
        code = self._stack[depth].code
        if id(code) not in self._owners:
            self._owners[id(code)] = code_owner(code.co_filename) is CodeOwner.PROGRAM
        return self._owners[id(code)] and not any(
            each.code is MODULE_CALL_CODE for each in self._stack[:depth]
        )


def _running_calls() -> list[_Call]:
    """Return the running calls of this thread, outermost first, without those of memwatch and its caller.

    The list is empty while a debugger or a coverage tool is active.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_memwatch_code(frame.f_code.co_filename):
        frame = frame.f_back
    calls: list[_Call] = []
    if sys.gettrace() is not None:
        return calls
    while frame is not None and not is_memwatch_code(frame.f_code.co_filename):
        mark = frame.f_trace
        if mark is None:
            mark = frame.f_trace = _Mark()
        elif type(mark) is not _Mark:
            return []
        calls.append(_Call(mark, frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return calls[::-1]


def _loops_of(code: CodeType) -> list[_Range]:
    """Return the loops of a function: each jump back ends one."""
    ends: dict[int, int] = {}
    for each in dis.get_instructions(code):
        is_jump = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        if is_jump and each.argval <= each.offset and each.opname != _WAITS:
            ends[each.argval] = max(ends.get(each.argval, 0), each.offset)
    return [_Range(start, end) for start, end in ends.items()]
