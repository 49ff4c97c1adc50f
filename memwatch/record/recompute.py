"""What checkpointing computes again in backward: when it begins and ends, and which region of the forward it is.

`torch.utils.checkpoint` runs a region again while some node of the backward waits for its saved tensors. The calls of
Python and of modules are the real ones then; only the graph task that runs tells that a backward is under way.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import (
    ENGINE_CODE,
    FunctionBase,
    current_graph_task_id,
    current_node,
    keeps_graph,
    sequence_nr_of,
)
from memwatch._torch.checkpoint import (
    RECOMPUTE_FUNCTION,
    RECOMPUTES_WORK,
    REENTRANT_BACKWARD,
    REENTRANT_FORWARD,
    RUN_AGAIN,
    SAVE_INPUTS,
    recomputed_tensors,
)
from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.record.interception.tracing import is_tracing
from memwatch.record.patches import Patches
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from memwatch.record.backend import CallContext, CaptureStack
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.storages import Storages

NOTHING: Final = -2
"""The graph task in which nothing is computed again; -1 is the number of no graph task."""
_apply: Final[Any] = BackwardCFunction.apply
_APPLY_CODE: Final = _apply.__code__


def _nothing() -> None:
    return None


def recomputes_by_hand() -> bool:
    """Return True if a Function's own backward, and no hook, builds a graph where the engine wants none.

    That is inferred to be a checkpoint by hand: it computes its forward again and differentiates that. A recorder asks
    for the ops of a backward that run with gradients on.
    """
    if keeps_graph() or not isinstance(current_node(), FunctionBase):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not ENGINE_CODE:
        if frame.f_code is _APPLY_CODE:
            return True
        frame = frame.f_back
    return False


class _Region(NamedTuple):
    """Who called a checkpointed region in forward, and where torch keeps what belongs to it."""

    module: int
    stack: int
    sequence: int = NONE
    frame: Callable[[], Any] = _nothing


class Recomputes:
    """Note in the context when a checkpointed region runs again, and what torch keeps of it.

    Attributes:
        tables: the rows by table.
        python_functions: those that torch calls.
        sees_this_thread: returns whether ops of the running thread are recorded.
    """

    def __init__(
        self, context: CallContext, storages: Storages, capture_stack: CaptureStack, op_counter: OpCounter
    ) -> None:
        self._runs, self._kept = Rows(), Rows()
        self.tables = {"recomputes": self._runs, "recomputed": self._kept}
        self._context = context
        self._storages = storages
        self._capture_stack = capture_stack
        self._op_counter = op_counter
        self._thread = threading.get_ident()
        self.sees_this_thread: Callable[[], bool] = lambda: False
        self._patches = Patches()
        # by the function that runs a region again, or by its node
        self._regions: weakref.WeakKeyDictionary[Any, _Region] = weakref.WeakKeyDictionary()
        cls = Recomputes
        self.python_functions: tuple[Callable[..., Any], ...] = (
            cls._save_inputs, cls._run_again, cls._reentrant_forward, cls._reentrant_backward, cls._region,
            cls._again, cls._note_kept, cls._is_here,
        )  # fmt: skip

    def start(self) -> None:
        """Begin to see regions."""
        if RECOMPUTES_WORK:
            self._patches.put(*SAVE_INPUTS, self._save_inputs)
            self._patches.put(*RUN_AGAIN, self._run_again)
        self._patches.put(*REENTRANT_FORWARD, self._reentrant_forward)
        self._patches.put(*REENTRANT_BACKWARD, self._reentrant_backward)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()
        self._regions.clear()

    def _save_inputs(self, save_inputs: Callable[..., None], frame: Any, *args: Any) -> None:
        if not self._is_here():
            return save_inputs(frame, *args)
        self._regions[getattr(frame, RECOMPUTE_FUNCTION)] = self._region(frame=weakref.ref(frame))
        self._context.saves_inputs = True
        try:
            return save_inputs(frame, *args)
        finally:
            self._context.saves_inputs = False

    def _run_again(self, run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        return self._again(function, run, (function, *args), kwargs)

    def _reentrant_forward(self, forward: Callable[..., Any], node: Any, *args: Any) -> Any:
        if self._is_here():
            self._regions[node] = self._region(sequence=sequence_nr_of(node))
        return forward(node, *args)

    def _reentrant_backward(self, backward: Callable[..., Any], node: Any, *args: Any) -> Any:
        return self._again(node, backward, (node, *args), {})

    def _region(self, **books: Any) -> _Region:
        module, outer = self._context.top
        return _Region(module, self._capture_stack(outer, NONE), **books)

    def _again(self, key: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._is_here():
            return run(*args, **kwargs)
        context, start_op = self._context, self._op_counter[0]
        region = self._regions.get(key, _UNKNOWN)
        before = context.top, context.recomputing, context.thread
        context.top, context.recomputing = (region.module, context.top[1]), current_graph_task_id()
        context.thread = (
            threading.get_ident()
        )  # autograd runs the backward of other devices in threads of its own
        try:
            return run(*args, **kwargs)
        finally:  # by an exception too: torch leaves a region so once it has all that it needs
            context.top, context.recomputing, context.thread = before
            self._runs += (start_op, self._op_counter[0], region.sequence, region.module, region.stack)
            self._note_kept(region.frame())

    def _note_kept(self, frame: Any) -> None:
        if frame is None:
            return
        with disable_torch_function():
            for tensor in recomputed_tensors(frame):
                with contextlib.suppress(RuntimeError, NotImplementedError):  # it shows no storage
                    for part in plain_parts(tensor):
                        storage = self._storages.number_of(part, NONE, BASELINE)
                        self._kept += (storage, self._op_counter[0])

    def _is_here(self) -> bool:
        """Return True where ops are seen, unless a compiler writes down what runs."""
        return (threading.get_ident() == self._thread or self.sees_this_thread()) and not is_tracing()


_UNKNOWN: Final = _Region(NONE, NONE)
