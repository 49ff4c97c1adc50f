"""Calls of the program: which call holds an unnamed value, and whether the call of a variable still runs.

A call is followed through the call stacks of all ops between a sample and another op. A stack does not show whether it
is still the same call, or a new call of the same function at the same line. So a loop around a call may look like a
loop inside it. Then the answer is "unknown".
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.places import CALLS_ENGINE, Call
from memwatch.capture.schema import NONE
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray
    from memwatch.kinds.edges import Vertex

CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
"""Where the calls are that run a region."""
COMPREHENSIONS = ("comp>", "genexpr>")
"""The ends of the names that Python gives to comprehensions and to generator expressions."""


class StackCall(NamedTuple):
    """A running call of the program: its place, and the name of its function."""

    file: str
    line: int
    function: str
    is_own: bool

    @property
    def site(self) -> str:
        """`file:line` that the call has reached."""
        return f"{self.file}:{self.line}"


def common_call(facts: Facts, allocation: int, op: int) -> StackCall | None:
    """Return the program's innermost call that ran both when an allocation was made and while an op ran.

    Allocations of autograd's engine do not belong to the calls around the engine, only to calls that it makes itself.
    """
    made = int(facts.allocations.op[allocation])
    if op < 0 or made == NONE:
        return None
    stack = facts.capture.tables["ops"]["stack"]
    birth, now = (facts.call_stacks.frames(int(stack[number]))[::-1] for number in (made, op))
    found = loop = None
    for (file, line, function, calls_torch), (file_now, line_now, function_now, _) in zip(
        birth, now, strict=False
    ):
        if (file, function) != (file_now, function_now):
            return found
        if file.endswith(CALLS_ENGINE):
            found = loop = None
        if calls_torch:
            is_own = facts.call_stacks.owner_of_file[file] == CodeOwner.PROGRAM
            found = StackCall(file, line_now, defined_name(function), is_own)
            loop = found if function.endswith("comp>") else loop
        if line != line_now:
            return found
    # Both stacks are equal. If the calls are inside a comprehension, it has run them again, and it keeps the result.
    return loop or found


def defined_name(function: str) -> str:
    """Return the name of a function in its `def`; for a comprehension, the name of the function around it."""
    *around, name = function.replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(COMPREHENSIONS) and around else name


_GONE = 0  # in place of a line: the call is not on this stack
_ELSEWHERE = -1  # the stack is that of another thread
_UNREAD = -2  # not computed yet
_ITERATED = "."
_FIRST_LOOK_OPS = 4096  # ops that the first search reads; each further search reads more. A guess


class CallState(Enum):
    """Whether a call that was seen at one op runs while another op runs."""

    RUNS = "runs"
    ENDED = "ended"
    UNKNOWN = "unknown"


class _Place(NamedTuple):
    """A call on a stack: the frames around it, outermost first, and its own."""

    around: tuple[Call, ...]
    frame: Call


class RunningCalls:
    """Answers about calls, by the call stacks of ops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._stacks: IntArray = facts.capture.tables["ops"]["stack"]
        self._frames: dict[int, tuple[Call, ...]] = {}
        self._lines: dict[_Place, IntArray] = {}
        self._states: dict[tuple[_Place, int, int], CallState] = {}

    def frames(self, op: int) -> tuple[Call, ...]:
        """Return the call stack of an op, outermost first; empty where none was recorded."""
        if not 0 <= op < len(self._stacks):
            return ()
        return self._frames_of(int(self._stacks[op]))

    def _frames_of(self, stack: int) -> tuple[Call, ...]:
        if stack not in self._frames:
            frames = () if stack == NONE else self._facts.call_stacks.frames(stack)[::-1]
            self._frames[stack] = tuple(frames)
        return self._frames[stack]

    def has_stack(self, op: int) -> bool:
        """Return True if the call stack of an op was recorded."""
        return bool(self.frames(op))

    def on_stack(self, call: Vertex, op: int, *, variable: str | None) -> bool:
        """Return True if a call of the same function runs while an op runs, and may have a variable.

        The iterable of a comprehension is a variable of the comprehension's own call, reported under the function
        around it.
        """
        frames = [frame for frame in self.frames(op) if _is_of(call, frame)]
        if variable is not None and variable.startswith(_ITERATED):
            return any(frame.function.endswith(COMPREHENSIONS) for frame in frames)
        return bool(frames)

    def count(self, call: Vertex, op: int) -> int:
        """Return how many calls of the same function run while an op runs."""
        return sum(_is_of(call, frame) for frame in self.frames(op))

    def state(self, call: Vertex, seen_op: int, op: int) -> CallState:
        """Return whether a call, as a sample saw it during one op, runs during another op.

        Args:
            call: the frame in the sample, with the line that it had reached.
            seen_op: the op in the middle of which the sample was taken.
            op: the other op, before or after.
        """
        place = None if call.thread else self._place(call, seen_op)
        if place is None or not self.has_stack(op):
            return CallState.UNKNOWN
        if self._is_of_left_region(place, seen_op, op):
            return CallState.ENDED
        key = (place, seen_op, op)
        if key not in self._states:
            self._states[key] = self._follow(place, *sorted((seen_op, op)))
        return self._states[key]

    def _is_of_left_region(self, place: _Place, seen_op: int, op: int) -> bool:
        """Return True for a call in a checkpointed region that ran again, and had been left by the time of `op`.

        The next region may begin with no op in between, and its calls look the same.
        """
        recomputes = self._facts.recomputes
        inside = any(frame.file.endswith(CHECKPOINT_FILE) for frame in place.around)
        return inside and recomputes.share_a_run(seen_op, seen_op) and not recomputes.share_a_run(seen_op, op)

    def waits(self, call: Vertex, seen_op: int, ops: range) -> bool:
        """Return True if a call, as a sample saw it during one op, stays at its line while some ops run."""
        place = None if call.thread else self._place(call, seen_op)
        if place is None:
            return False
        return bool((self._lines_of(place, self._stacks[ops.start : ops.stop]) == place.frame.line).all())

    def is_made_in(self, call: Vertex, seen_op: int, made: int) -> bool:
        """Return True if an op ran inside a call of this function, at this place of the program."""
        place = None if call.thread else self._place(call, seen_op)
        return place is not None and self._line(place, int(self._stacks[made])) > _GONE

    def is_unfinished(self, call: Vertex, made: int, op: int) -> bool:
        """Return True if the statement of a call in which one op ran may still run while a later op runs."""
        frames = self.frames(op)
        depth = next((at for at, frame in reversed(list(enumerate(frames))) if _is_of(call, frame)), None)
        if depth is None:
            return False
        place = _Place(frames[:depth], frames[depth])
        lines = self._lines_of(place, self._stacks[made : op + 1])
        return bool((lines == frames[depth].line).all())

    def _place(self, call: Vertex, op: int) -> _Place | None:
        """Return where a call is on the stack of an op: the innermost that fits, for it returns first."""
        frames = self.frames(op)
        for depth, frame in reversed(list(enumerate(frames))):
            if _is_of(call, frame) and frame.line == call.line:
                return _Place(frames[:depth], frame)
        return None

    def _follow(self, place: _Place, first: int, last: int) -> CallState:
        lines = self._lines_of(place, self._stacks[first : last + 1])
        if (lines == _GONE).any():
            return CallState.ENDED
        back = np.flatnonzero(np.diff(lines) < 0)
        if not len(back):
            return CallState.RUNS
        # Python went back to an earlier line. It is a loop inside the call, and not a new call, if the lines before the
        # loop did not run again.
        run = self._since_call(place, first)
        is_loop = len(run) and run.min() < lines[back + 1].min()
        return CallState.RUNS if is_loop else CallState.UNKNOWN

    def _since_call(self, place: _Place, op: int) -> IntArray:
        """Return the lines that a call has run from its begin to an op.

        Most calls are short, so this reads few ops.
        """
        count = _FIRST_LOOK_OPS
        while True:
            lines = self._lines_of(place, self._stacks[max(op + 1 - count, 0) : op + 1])
            gone = np.flatnonzero(lines == _GONE)
            if len(gone):
                return lines[gone[-1] + 1 :]
            if count > op:
                return lines
            count *= 4

    def _lines_of(self, place: _Place, stacks: IntArray) -> IntArray:
        """Return the line that a call has reached in each of some stacks, without those of other threads."""
        lines = self._lines_by_stack(place)[stacks]
        if (lines == _UNREAD).any():
            for stack in np.unique(stacks[lines == _UNREAD]).tolist():
                self._line(place, stack)
            lines = self._lines_by_stack(place)[stacks]
        here: IntArray = lines[lines != _ELSEWHERE]
        return here

    def _lines_by_stack(self, place: _Place) -> IntArray:
        """Return the known lines that a call has reached, by stack; the last entry stands for "no stack"."""
        if place not in self._lines:
            self._lines[place] = np.full(int(self._stacks.max(initial=NONE)) + 2, _UNREAD, dtype=np.int32)
        return self._lines[place]

    def _line(self, place: _Place, stack: int) -> int:
        lines = self._lines_by_stack(place)
        if lines[stack] == _UNREAD:
            lines[stack] = _line_in(place, self._frames_of(stack))
        return int(lines[stack])


def _line_in(place: _Place, frames: tuple[Call, ...]) -> int:
    around, frame = place
    depth = len(around)
    root = (around or (frame,))[0]
    if not frames or (frames[0].file, frames[0].function) != (root.file, root.function):
        return _ELSEWHERE
    if len(frames) <= depth or frames[:depth] != around:
        return _GONE
    here = frames[depth]
    return here.line if (here.file, here.function) == (frame.file, frame.function) else _GONE


def _is_of(call: Vertex, frame: Call) -> bool:
    """Return True if a frame of a stack is one of the function that a sample named."""
    function = call.inner or call  # of a call of torch, the program's function that it runs
    return call.file == frame.file and function.name == defined_name(frame.function)
