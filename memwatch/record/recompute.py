"""Follow the regions that checkpointing recomputes in backward: start, end, and the forward region each repeats.

`torch.utils.checkpoint` runs a region again while a node of the backward waits for its saved tensors. The Python and
module calls are then the real ones. Only the running graph task shows that a backward is under way.

A region that runs again must get the same tensor objects as before. Without hooks autograd returns the very tensor
that it saved. Under hooks, such as memwatch's, autograd makes a new tensor at each unpacking. Code that tests `key is
value`, as multi-head attention does, would then take another branch.
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import (
    ENGINE_CODE,
    FunctionBase,
    current_graph_task_id,
    current_node,
    sequence_nr_of,
)
from memwatch._torch.checkpoint import (
    NEW_FRAME,
    RECOMPUTES_WORK,
    REENTRANT_BACKWARD,
    REENTRANT_FORWARD,
    RUN_AGAIN,
    SAVE_INPUTS,
    recompute_function,
    recomputed_tensors,
)
from memwatch._torch.modes import disable_torch_function
from memwatch.capture.rows import RecomputesRow
from memwatch.capture.schema import NONE
from memwatch.patches import Patches
from memwatch.record.compilers import is_tracing
from memwatch.record.harmless import Harmless
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from memwatch.record.backend import CallContext, CaptureStack
    from memwatch.record.tables.rows import OpCounter
    from memwatch.record.tables.storages import Storages


@dataclass(eq=False)
class RegionInputs:
    """The arguments of a region, as weak references."""

    _tensors: list[weakref.ref[Any] | None] = field(default_factory=list)
    _first: list[int] = field(default_factory=list)

    def note(self, given: Sequence[Any]) -> None:
        """Note the arguments of a region. torch may have added arguments in front."""
        places: dict[int, int] = {}
        self._first = [places.setdefault(id(item), place) for place, item in enumerate(given)]
        self._tensors = [weakref.ref(item) if isinstance(item, torch.Tensor) else None for item in given]

    def put_back(self, unpacked: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments for the second run. Arguments that were one object are one object again."""
        added = len(self._tensors) - len(unpacked)
        if added < 0:
            return tuple(unpacked)
        found: dict[int, Any] = {}
        for item, ref, first in zip(unpacked, self._tensors[added:], self._first[added:], strict=True):
            original = None if ref is None else ref()
            found.setdefault(first, item if original is None else original)
        return tuple(
            item if ref is None else found[first]
            for item, ref, first in zip(unpacked, self._tensors[added:], self._first[added:], strict=True)
        )


NOTHING: Final = -2
"""The value for "no region runs again". -1 means "outside a backward"."""
_REGION: Final = "a checkpointed region"
_apply: Final[Any] = BackwardCFunction.apply
_APPLY_CODE: Final = _apply.__code__


def _nothing() -> None:
    return None


def recomputes_by_hand() -> bool:
    """Return True if a Function's own backward (not a hook) builds a graph during a plain backward.

    memwatch takes this for a checkpoint by hand, which computes its forward again and differentiates it. The recorder
    calls this for ops of a backward that run with gradients on while the engine does not keep its graph.
    """
    if not isinstance(current_node(), FunctionBase):
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not ENGINE_CODE:
        if frame.f_code is _APPLY_CODE:
            return True
        frame = frame.f_back
    return False


class _Region(NamedTuple):
    """A checkpointed region in forward: its caller, its arguments, and the frame that holds torch's data about it."""

    module: int
    stack: int
    sequence: int = NONE
    frame: Callable[[], Any] = _nothing
    inputs: RegionInputs | None = None


class _Run(NamedTuple):
    """A region that runs again. `before` is the former state of the context, None if it stays as it is."""

    region: _Region
    start_op: int
    before: tuple[Any, ...] | None


class Recomputes:
    """Note in the context when a checkpointed region runs again, and the tensors that torch keeps of it.

    Attributes:
        tables: the rows, by table.
        python_functions: the functions that torch calls.
        sees_this_thread: returns whether ops of the running thread are recorded.
        on_begin: called before a region runs again.
        on_end: called after it.
    """

    def __init__(
        self,
        context: CallContext,
        storages: Storages,
        capture_stack: CaptureStack,
        op_counter: OpCounter,
        could_not_record: Callable[[str, Exception], None],
    ) -> None:
        self._runs = Rows()
        self._kept = Rows()
        self.tables = {"recomputes": self._runs, "recomputed": self._kept}
        self._context = context
        self._storages = storages
        self._capture_stack = capture_stack
        self._op_counter = op_counter
        self._thread = threading.get_ident()
        self.sees_this_thread: Callable[[], bool] = lambda: False
        self.on_begin: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._could_not_record = could_not_record
        self._harmless = Harmless(could_not_record, _REGION)
        self._newest = RegionInputs()
        self._has_context = threading.RLock()
        self._patches = Patches()
        # key: the function that runs a region again, or its node
        self._regions: weakref.WeakKeyDictionary[Any, _Region] = weakref.WeakKeyDictionary()
        cls = Recomputes
        self.python_functions: tuple[Callable[..., Any], ...] = (
            cls._new_frame, cls._save_inputs, cls._run_again, cls._reentrant_forward, cls._reentrant_backward,
            cls._region, cls._again, cls._begin, cls._end, cls._note_kept, cls._is_here,
        )  # fmt: skip

    def start(self) -> None:
        """Begin to see regions."""
        if RECOMPUTES_WORK:
            self._patches.put(*NEW_FRAME, self._new_frame)
            self._patches.put(*SAVE_INPUTS, self._save_inputs)
            self._patches.put(*RUN_AGAIN, self._run_again)
        self._patches.put(*REENTRANT_FORWARD, self._reentrant_forward)
        self._patches.put(*REENTRANT_BACKWARD, self._reentrant_backward)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()
        self._regions.clear()

    def _new_frame(self, init: Callable[..., None], frame: Any, *args: Any, **kwargs: Any) -> None:
        init(frame, *args, **kwargs)
        with self._harmless:
            if self._is_here() and (function := recompute_function(frame)) is not None:
                self._newest = RegionInputs()
                self._regions[function] = self._region(frame=weakref.ref(frame), inputs=self._newest)

    def _save_inputs(self, save_inputs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_here = False
        with self._harmless:
            is_here = self._is_here()
        if not is_here:
            return save_inputs(*args, **kwargs)
        with self._harmless:
            self._newest.note(args)
        with self._harmless:
            self._context.saves_inputs = True
        try:
            return save_inputs(*args, **kwargs)
        finally:
            self._context.saves_inputs = False

    def _run_again(self, run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        with self._harmless:
            region = self._regions.get(function)
            args = args if region is None or region.inputs is None else region.inputs.put_back(args)
        return self._again(function, run, (function, *args), kwargs)

    def _reentrant_forward(self, forward: Callable[..., Any], node: Any, *args: Any, **kwargs: Any) -> Any:
        with self._harmless:
            if self._is_here():
                self._regions[node] = self._region(sequence=sequence_nr_of(node))
        return forward(node, *args, **kwargs)

    def _reentrant_backward(self, backward: Callable[..., Any], node: Any, *args: Any, **kwargs: Any) -> Any:
        return self._again(node, backward, (node, *args), kwargs)

    def _region(self, **books: Any) -> _Region:
        module, outer = self._context.top
        return _Region(module, self._capture_stack(outer, NONE), **books)

    def _again(self, key: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun: _Run | None = None
        with self._harmless:
            if self._is_here():
                begun = self._begin(self._regions.get(key, _UNKNOWN))
        try:
            return run(*args, **kwargs)
        finally:  # also after an exception: torch leaves a region with one as soon as it has all the tensors it needs
            if begun is not None:
                with self._harmless:
                    self._end(begun)

    def _begin(self, region: _Region) -> _Run:
        """Note in the context that a region runs again in this thread, unless another thread's region has the context.

        Autograd runs the backward of each device in a thread of its own, and may run regions in several at once.
        """
        if self.on_begin is not None:
            self.on_begin()
        context, start_op, task = self._context, self._op_counter[0], current_graph_task_id()
        if not self._has_context.acquire(blocking=False):
            self._could_not_record(_REGION, RuntimeError("another ran again meanwhile in another thread"))
            return _Run(region, start_op, None)
        before = context.top, context.recomputing, context.thread
        context.top = (region.module, context.top[1])
        context.recomputing = task
        context.thread = threading.get_ident()
        return _Run(region, start_op, before)

    def _end(self, run: _Run) -> None:
        if run.before is not None:
            self._context.top, self._context.recomputing, self._context.thread = run.before
            self._has_context.release()
        region = run.region
        self._runs += RecomputesRow(
            start_op=run.start_op, end_op=self._op_counter[0], sequence=region.sequence, stack=region.stack
        )
        self._note_kept(region.frame())
        if self.on_end is not None:
            self.on_end()

    def _note_kept(self, frame: Any) -> None:
        if frame is None:
            return
        with disable_torch_function():
            for tensor in recomputed_tensors(frame):
                with suppress(RuntimeError, NotImplementedError):  # it has no storage
                    for part in plain_parts(tensor):
                        self._kept += (self._storages.number_of(part, NONE, BASELINE),)

    def _is_here(self) -> bool:
        """Return True if ops of this thread are seen and no compiler is tracing."""
        if self._context.is_asleep or is_tracing():
            return False
        return threading.get_ident() == self._thread or self.sees_this_thread()


_UNKNOWN: Final = _Region(NONE, NONE)
