"""How a checkpointed region runs: the contexts of its forward and of running it again, and the first pass, measured.

The first pass is measured from its first region to the end of the backward that runs its regions again. What was made
before it is neither in the measured figure nor in the plan's.
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
from memwatch.encoding.values import leaves
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
"""By overload, for each call of it in a region: the bytes of its results if they are saved, 0 if not."""

_SAVE, _AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
_NOTHING: Final[list[OpOverload]] = []
_SHOWS_RESULT: Final = "op_output" in inspect.signature(SelectiveCheckpointContext.__init__).parameters


def sizes_by_region(choice: Choice) -> dict[int, Sizes]:
    """Return what each region saves, by its key; regions that save nothing are left out."""
    found: dict[int, dict[OpOverload, list[int]]] = {}
    for key, name, place in sorted(choice.saved):
        overload = overload_named(name)
        sizes = found.setdefault(key, {}).setdefault(overload, [])
        sizes += [0] * (place - len(sizes)) + [choice.saved[key, name, place]]
    return dict(found)


def contexts_of(sizes: Sizes | None, around: Iterable[Around] = ()) -> Contexts:
    """Return the two contexts of a region.

    Args:
        sizes: what the region saves, None for a plain checkpoint.
        around: called when the region begins to run again.
    """
    if sizes or compiler.is_compiling():
        forward, again = create_selective_checkpoint_contexts(policy_of(sizes) if sizes else _NOTHING)
    else:
        forward, again = contextlib.nullcontext(), contextlib.nullcontext()
    entered = tuple(around)
    return forward, RunAgain(again, entered) if entered else again


def policy_of(sizes: Sizes) -> Callable[..., CheckpointPolicy]:
    """Return the policy of one run of a region.

    The calls of an overload are counted, as torch itself does to find what was saved. A result that is larger than the
    recorded one is not saved, so that a region never takes more than was planned for it.
    """
    left = {overload: iter(each) for overload, each in sizes.items()}
    decided: dict[OpOverload, deque[CheckpointPolicy]] = {}

    def policy(context: Any, op: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        planned = left.get(op)
        if planned is None:
            return _AGAIN
        if context.is_recompute:  # torch before 2.13 asks once more, and does not show the result
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


Around: TypeAlias = "Callable[[], AbstractContextManager[Any]]"


@dataclass(slots=True)
class RunAgain:
    """The context in which a region runs again, with others around it."""

    inner: AbstractContextManager[Any]
    around: tuple[Around, ...]
    _stack: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        """Enter all contexts."""
        with contextlib.ExitStack() as stack:
            for each in self.around:
                stack.enter_context(each())
            stack.enter_context(self.inner)
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all contexts; torch leaves them by an exception once it has what it needs."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, trace)


class _Token:
    """Lives as long as autograd keeps what a pass saved."""


class FirstPass:
    """Measures one pass, and says if it takes more than a plan claims.

    Args:
        what: who claims, as the message begins.
        device: device whose bytes count.
        undo: called before the error.

    Attributes:
        is_over: whether a pass was measured, or none needs to be.
        strict: whether it is an error to take more; if not, it is a warning.
    """

    def __init__(self, what: str, device: str, undo: Callable[[], None] = lambda: None) -> None:
        self.is_over = self.strict = False
        self._what, self._device, self._undo = what, device, undo
        self._window: AllocatorWindow | None = None
        self._thread = 0
        self._claim_bytes = 0
        self._token: weakref.ref[_Token] | None = None
        self._has_run_again = False
        self._end_calls: Callable[[], None] = lambda: None

    def region(self, claim_bytes: int) -> list[Around]:
        """Note that a region begins in forward; return what to enter when it runs again.

        Args:
            claim_bytes: the most bytes that the plan says are held of what the pass makes.
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
        """End the measurement of a pass of which no backward will come, as after an exception of the program's."""
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
        """Return the most bytes that the pass held; None in a thread that cannot tell."""
        if self._window is None or self._thread != threading.get_ident():
            return None
        window, self._window = self._window, None
        self._end_calls()
        return max((stretch.peak_bytes - stretch.start_bytes for stretch in window.stop()), default=None)

    def _judge(self, taken_bytes: int) -> None:
        undo, self._undo = self._undo, lambda: None
        if taken_bytes <= self._claim_bytes:
            return
        claim, taken = format_bytes(self._claim_bytes), format_bytes(taken_bytes)
        message = (
            f"{self._what}: from the first checkpointed region to the end of the backward the plan claims {claim}, "
            f"and the first such pass took {taken}"
        )
        if self.strict:
            undo()
            raise BudgetError(message, None, taken_bytes, advice=_ADVICE)
        warnings.warn(f"{message}; {_ADVICE}", stacklevel=4)


_ADVICE = "record a step as large as this one and plan again"
