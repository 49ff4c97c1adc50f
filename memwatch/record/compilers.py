"""Keep out of the way of torch's compilers: dynamo and the tracer of torch.jit."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd import next_sequence_nr
from memwatch._torch.dynamo import (
    COMPILED_WRAPPER,
    RESTORE_CALLBACK,
    SET_CALLBACK,
    loaded_eval_frame,
)
from memwatch._torch.jit import TRACERS, tracing_state
from memwatch.capture.rows import CompiledCallsRow, CompiledNodesRow
from memwatch.patches import Patches
from memwatch.record.clock import ticks
from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CALLER: Final = 2
"""Frames between a replacement's method and the caller of the replaced function."""


class CompiledCalls:
    """Pause the interceptor while a compiled function runs in this thread. Append rows for each such call.

    Args:
        pause: switches off the parts that dynamo must not see, and returns whether the call runs in the block's
            thread.
        resume: switches it on again.
        place: returns the running module and the call stack.
        ours: functions of memwatch that torch calls, even while dynamo evaluates frames.
    """

    def __init__(
        self,
        pause: Callable[[], bool],
        resume: Callable[[], None],
        place: Callable[[], tuple[int, int]],
        ours: Iterable[Any],
    ) -> None:
        self.count = 0
        self.rows = Rows()
        self.nodes = Rows()
        self._pause = pause
        self._resume = resume
        self._place = place
        self._begun: tuple[int, int, int, int] | None = None
        self._ours = tuple(ours)
        self._patches = Patches()
        self._outermost: int | None = None  # id of the running frame of the wrapper
        self._prior: Any = None

    def start(self) -> None:
        """Begin to see compiled calls. dynamo is patched now, or when `torch.compile` imports it."""
        if loaded_eval_frame() is not None:
            self._patch_dynamo()
        else:
            self._patches.put(torch, "compile", self._compile)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()

    def _compile(self, compile_: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        compiled = compile_(*args, **kwargs)
        if len(self._patches) == 1:
            self._patch_dynamo()
        return compiled

    def _patch_dynamo(self) -> None:
        dynamo = loaded_eval_frame()
        if dynamo is None:
            return
        codes = [function.__code__ for function in self._ours]
        codes += self._patches.put(dynamo, SET_CALLBACK, self._leaving)
        codes += self._patches.put(dynamo, RESTORE_CALLBACK, self._returning)
        for code in codes:  # they run while dynamo evaluates frames, and it must not compile them
            dynamo.skip_code(code)

    def _leaving(self, set_eval_frame: Callable[[Any], Any], callback: Any) -> Any:
        prior = set_eval_frame(callback)
        try:
            frame = sys._getframe(_CALLER)
            enters = callback is None and frame.f_code.co_name == COMPILED_WRAPPER and self._outermost is None
            if enters and self._pause():
                self._outermost = id(frame)
                self._prior = prior
                self.count += 1
                self._begun = ticks(), next_sequence_nr(), *self._place()
        except MemoryError:  # the call has no row
            self._begun = None
        return prior

    def _returning(self, maybe_set_eval_frame: Callable[[Any], Any], callback: Any) -> Any:
        try:
            if self._outermost == id(sys._getframe(_CALLER)) and callback is self._prior:
                self._outermost = self._prior = None
                self._note_end()
        except MemoryError:  # the call has no row
            self._begun = None
        return maybe_set_eval_frame(callback)

    def _note_end(self) -> None:
        try:
            if self._begun is not None:
                start, first, module, stack = self._begun
                self.rows += CompiledCallsRow(
                    start_ticks=start, end_ticks=ticks(), module=module, stack=stack
                )
                last = next_sequence_nr() - 1
                if last >= first:
                    self.nodes += CompiledNodesRow(first=first, last=last, module=module, stack=stack)
        finally:
            self._resume()


def is_tracing() -> bool:
    """Return True while dynamo or torch.jit traces. memwatch's code must not run then."""
    return torch.compiler.is_dynamo_compiling() or tracing_state() is not None


class JitTracing:
    """Switch the recorders off during `torch.jit.trace` and `torch.jit.trace_module`.

    Args:
        off: switches off everything that reads ops or tensors.
        on: switches it on again.
    """

    def __init__(self, off: Callable[[], None], on: Callable[[], None]) -> None:
        self._off = off
        self._on = on
        self._depth = 0
        self._thread = threading.get_ident()
        self._patches = Patches()

    def start(self) -> None:
        """Begin to see traces."""
        for place, name in TRACERS:
            self._patches.put(place, name, self._traced)

    def stop(self) -> None:
        """Undo `start`."""
        self._patches.take_off()

    def _traced(self, trace: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._patches or threading.get_ident() != self._thread:
            return trace(*args, **kwargs)
        self._depth += 1
        if self._depth == 1:
            self._off()
        try:
            return trace(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth:
                self._on()
