"""How a checkpointed region runs: the contexts of its forward and of running it again, and the first pass, measured.

The first pass is measured from its first region to the end of the backward that runs its regions again. Both the
measured figure and the plan's figure leave out buffers that were made before it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from torch import Tensor, compiler
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from memwatch._torch.engine import call_after_backwards, is_in_backward
from memwatch.encoding import leaves
from memwatch.planner.errors import BudgetError
from memwatch.replay.measure import AllocatorWindow, can_measure
from memwatch.replay.program import overload_named
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from memwatch._torch.dispatch import OpOverload
    from memwatch.replay.checkpoints.choose import Choice

    Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


Sizes: TypeAlias = "Mapping[OpOverload, list[int]]"
"""Overload -> for each of its calls in a region, the bytes of the results if they are saved, 0 if not."""

_SAVE = CheckpointPolicy.MUST_SAVE
_AGAIN = CheckpointPolicy.PREFER_RECOMPUTE
_NOTHING: Final[list[OpOverload]] = []
_SHOWS_RESULT: Final = "op_output" in inspect.signature(SelectiveCheckpointContext.__init__).parameters


def sizes_by_region(choice: Choice) -> dict[int, Sizes]:
    """Return the saved sizes of each region, by its key. Regions that save nothing are left out."""
    found: dict[int, dict[OpOverload, list[int]]] = {}
    for key, name, place in sorted(choice.saved):
        overload = overload_named(name)
        sizes = found.setdefault(key, {}).setdefault(overload, [])
        sizes += [0] * (place - len(sizes)) + [choice.saved[key, name, place]]
    return dict(found)


def contexts_of(sizes: Sizes | None, around: Iterable[ContextMaker] = ()) -> Contexts:
    """Return the two contexts of a region.

    Args:
        sizes: the saved sizes of the region; None for a plain checkpoint.
        around: functions that make more contexts, entered when the region runs again.
    """
    if sizes or compiler.is_compiling():
        forward, again = create_selective_checkpoint_contexts(policy_of(sizes) if sizes else _NOTHING)
    else:
        forward, again = contextlib.nullcontext(), contextlib.nullcontext()
    entered = tuple(around)
    return forward, RunAgain(again, entered) if entered else again


def policy_of(sizes: Sizes) -> Callable[..., CheckpointPolicy]:
    """Return the policy of one run of a region.

    The policy counts the calls of an overload, as torch does to find saved results. A result that is larger than in
    the recording is computed again, so that a region stays within the plan's bytes.
    """
    left = {overload: iter(each) for overload, each in sizes.items()}
    decided: dict[OpOverload, deque[CheckpointPolicy]] = {}

    def policy(context: Any, op: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        planned = left.get(op)
        if planned is None:
            return _AGAIN
        if context.is_recompute:  # torch before 2.13 calls the policy again, without the result
            return decided[op].popleft() if decided.get(op) else _AGAIN
        nbytes = next(planned, 0)
        if _SHOWS_RESULT:
            return _SAVE if nbytes and _result_bytes(context.op_output) <= nbytes else _AGAIN
        decision = _SAVE if nbytes else _AGAIN
        decided.setdefault(op, deque()).append(decision)
        return decision

    return policy


def _result_bytes(result: Any) -> int:
    if isinstance(result, Tensor):
        return result.untyped_storage().nbytes()
    return sum(each.untyped_storage().nbytes() for each in leaves(result) if isinstance(each, Tensor))


ContextMaker: TypeAlias = "Callable[[], AbstractContextManager[Any]]"


@dataclass(slots=True)
class RunAgain:
    """The context of a region that runs again, inside of other contexts."""

    inner: AbstractContextManager[Any]
    around: tuple[ContextMaker, ...]
    _stack: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for each in self.around:
                stack.enter_context(each())
            stack.enter_context(self.inner)
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all contexts. torch leaves them with an exception as soon as it has all saved tensors."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, trace)


class _Token:
    """An object that dies when autograd drops the saved tensors of a pass."""


class FirstPass:
    """Measures one pass, and warns if it takes more bytes than the plan claims.

    Args:
        what: the beginning of the message: the function that the user called.
        device: device whose bytes count.
        undo: called before the error is raised.

    Attributes:
        is_over: whether nothing is left to measure.
        strict: whether to raise an error instead of the warning.
    """

    def __init__(self, what: str, device: str, undo: Callable[[], None] = lambda: None) -> None:
        self.is_over = self.strict = False
        self._what = what
        self._device = device
        self._undo = undo
        self._window: AllocatorWindow | None = None
        self._thread = 0
        self._claim_bytes = 0
        self._token: weakref.ref[_Token] | None = None
        self._has_run_again = False
        self._end_calls: Callable[[], None] = lambda: None

    def region(self, claim_bytes: int) -> list[ContextMaker]:
        """Begin to measure with the first region of a pass; return the contexts to enter when the region runs again.

        Args:
            claim_bytes: the most live bytes that the plan claims, among buffers that the pass makes.
        """
        if self.is_over:
            return []
        token = None if self._token is None else self._token()
        if self._window is None:
            if not can_measure():
                return []
            token = _Token()
            self._begin(token, claim_bytes)
        return [] if token is None else [functools.partial(self._running_again, token)]

    def _begin(self, token: _Token, claim_bytes: int) -> None:
        self._token = weakref.ref(token, lambda _: self._dropped())
        self._claim_bytes, self._has_run_again = claim_bytes, False
        self._thread = threading.get_ident()
        self._window = AllocatorWindow(self._device)
        self._window.mark("pass")
        self._end_calls = call_after_backwards(self._backward_returned)

    @contextlib.contextmanager
    def _running_again(self, token: _Token) -> Iterator[None]:
        self._has_run_again = True
        yield

    def _dropped(self) -> None:
        """Stop the measurement of a pass whose backward cannot come any more, for instance after an exception."""
        if not self._has_run_again and not is_in_backward():
            self._stop()

    def _backward_returned(self) -> None:
        if self._has_run_again and self._window is not None:
            taken_bytes = self._stop()
            if taken_bytes is not None:
                self.is_over = True
                self._judge(taken_bytes)
        elif self._token is None or self._token() is None:
            self._stop()

    def _stop(self) -> int | None:
        """End the window; return the most bytes that the pass held, None in another thread than the window's."""
        if self._window is None or self._thread != threading.get_ident():
            return None
        window, self._window = self._window, None
        self._end_calls()
        return max((stretch.peak_bytes - stretch.start_bytes for stretch in window.stop()), default=None)

    def _judge(self, taken_bytes: int) -> None:
        undo, self._undo = self._undo, lambda: None
        if taken_bytes <= self._claim_bytes:
            return
        claim = format_bytes(self._claim_bytes)
        taken = format_bytes(taken_bytes)
        message = (
            f"{self._what}: from the first checkpointed region to the end of the backward the plan claims {claim}, "
            f"and the first such pass took {taken}"
        )
        if self.strict:
            undo()
            raise BudgetError(message, None, taken_bytes, advice=_ADVICE)
        warnings.warn(f"{message}; {_ADVICE}", stacklevel=4)


_ADVICE = "record a step as large as this one and plan again"
