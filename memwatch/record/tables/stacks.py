"""Call stacks, captured as code addresses and instruction offsets, interned at once and symbolised late.

A module call is a boundary: the stack above it is captured once, at the call, and every op inside names
it by number. So the cost per op is that of the few frames between the op and the module that runs it.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.capture.schema import NONE
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from memwatch.record.tables.strings import Strings

_MAX_DEPTH: Final = 128
_MODULE_CALL: Final = torch.nn.Module._call_impl.__code__
"""torch's own frame around `forward`, just inside the boundary."""
_STEP_CALL: Final = next(
    constant
    for constant in torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(constant, CodeType)
)
"""torch's frame around every optimizer's `step`; the stack above it is captured once a step."""
_ENGINE: Final = torch.autograd.graph._engine_run_backward.__code__


class Stacks:
    """Intern the running call stack; hold code objects, never frames."""

    def __init__(self, strings: Strings, boundary: CodeType, *, enabled: bool) -> None:
        self._strings = strings
        self.bounds = {id(boundary), id(_MODULE_CALL), id(_STEP_CALL)}
        self._ids: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...]] = []
        self._codes: dict[int, CodeType] = {}
        self._last: dict[tuple[int, int, int], tuple[int, tuple[tuple[CodeType, int], ...]]] = {}
        self._written = 0
        self._frames: dict[tuple[int, int], tuple[int, int, int, int] | None] = {}
        self._task = self._task_stack = NONE
        self.enabled = enabled
        self.engine = id(_ENGINE)

    def capture(self, outer: int, task: int, depth: int = 3) -> int:
        """Return the id of the stack of the caller's caller.

        Args:
            outer: id of the stack of the module call that is running, -1 outside any.
            task: id of the autograd graph task that is running, -1 outside backward.
            depth: frames to leave out, counted from this one.
        """
        if not self.enabled:
            return NONE
        try:
            frame: Any = sys._getframe(depth)
        except ValueError:  # an op of a thread that C++ started, as torch.jit.fork does
            return NONE
        engine = task != NONE and frame.f_code is _ENGINE
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
                if caller is None or id(caller.f_code) in self.bounds:
                    return last[0]
        number = self._walk(frame, outer, here)
        if engine:
            self._task, self._task_stack = task, number
        return number

    def _walk(self, innermost: Any, outer: int, here: tuple[int, int, int]) -> int:
        """Follow the callers to the boundary; remember them for the next op that runs at the same place."""
        frame = innermost
        key, callers = [outer], []
        for _ in range(_MAX_DEPTH):
            if frame is None:
                key[0] = NONE
                break
            code, offset = frame.f_code, frame.f_lasti
            if id(code) in self.bounds:
                break
            key += (id(code), offset)
            callers.append((code, offset))
            frame = frame.f_back
        else:
            key[0] = NONE
        number = self.intern(tuple(key), innermost)
        self._last[here] = (number, tuple(callers[1:]))
        return number

    def intern(self, key: tuple[int, ...], frame: Any) -> int:
        """Return the id of a stack: that of its module call, then code and offset of every frame from `frame` on."""
        number = self._ids.get(key)
        if number is None:
            for address in key[1::2]:  # keeping the code object keeps its address from being used again
                self._codes[address] = frame.f_code
                frame = frame.f_back
            number = self._ids[key] = len(self._keys)
            self._keys += (key,)
        return number

    def unwritten_rows(self) -> list[int]:
        """Give the rows of the `stacks` table for the stacks interned since the last call."""
        rows: list[int] = []
        while self._written < len(self._keys):
            for depth, (file, line, function, owner) in enumerate(self._expand(self._written)):
                rows += (self._written, depth, file, line, function, owner)
            self._written += 1
        return rows

    def _expand(self, number: int) -> list[tuple[int, int, int, int]]:
        frames = []
        while number != NONE:
            key = self._keys[number]
            for address, offset in zip(key[1::2], key[2::2], strict=True):
                frame = self._symbolise(address, offset)
                if frame is not None:
                    frames.append(frame)
            number = key[0]
        return frames

    def _symbolise(self, address: int, offset: int) -> tuple[int, int, int, int] | None:
        if (address, offset) not in self._frames:
            code = self._codes[address]
            owner = code_owner(code.co_filename)
            self._frames[address, offset] = (
                None
                if owner is CodeOwner.MEMWATCH
                else (
                    self._strings(code.co_filename),
                    _line_at(code, offset),
                    self._strings(getattr(code, "co_qualname", code.co_name)),
                    int(owner),
                )
            )
        return self._frames[address, offset]


def _line_at(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
