"""Make the contexts in which a checkpointed region runs, and measure the first pass.

A *pass* is a forward with checkpointed regions and its backward. Each region has two contexts: the first is for its
forward, and the second for running it again in the backward. The first pass is measured from its first region to the
end of the backward. The measured figure and the plan's figure both leave out buffers that were made before the pass.

`Turns` finds the contexts of the regions that a program checkpoints itself. It knows a region by its turn in the pass.
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

import torch
from torch import Tensor, compiler
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from memwatch._torch.engine import call_after_backwards, is_in_backward
from memwatch.capture.schema import NONE
from memwatch.encoding import leaves
from memwatch.errors import MemwatchError
from memwatch.planner.plan import BudgetError, PlanFileError
from memwatch.replay.checkpoints.choose import Choice, choose_saved, own_timeline, simulate
from memwatch.replay.checkpoints.regions import (
    Region,
    likely_regions,
    match,
    own_regions,
    plain_name,
)
from memwatch.replay.checkpoints.step import TrainingStep
from memwatch.replay.measure import AllocatorWindow, can_measure
from memwatch.replay.program import overload_named
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from memwatch._torch.dispatch import OpOverload
    from memwatch.planner.plan import Plan
    from memwatch.replay.checkpoints.choose import Timeline

    Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


Sizes: TypeAlias = "Mapping[OpOverload, list[int]]"
"""Overload -> for each of its calls in a region, the bytes of the results if they are saved, 0 if not."""

_SAVE = CheckpointPolicy.MUST_SAVE
_AGAIN = CheckpointPolicy.PREFER_RECOMPUTE
_NOTHING: Final[list[OpOverload]] = []
# torch 2.13 and later gives the policy the result of the op
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
    """Return the policy of one run of a region: it decides which results of ops are saved.

    The policy counts the calls of each overload, as torch does to find saved results. A result that is larger than in
    the recording is not saved, so that a region stays within the plan's bytes.
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
    """A context for running a region again: torch's own context, inside of other contexts."""

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
        undo: called before an error is raised.

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

    # `token` is an argument so that it lives as long as the context, which autograd keeps with the saved tensors
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
        """End the window; return the most bytes that the pass held. Return None in another thread than the window's."""
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
            raise BudgetError(message, None, taken_bytes, advice=_RECORD_AGAIN)
        warnings.warn(f"{message}; {_RECORD_AGAIN}", stacklevel=4)


_RECORD_AGAIN = "record a step as large as this one and plan again"


_CONTEXTS: Final = "plan.checkpoint_contexts"
_SMALLER: Final = 'make the regions smaller, or use backend="memwatch"'


class Turns:
    """Returns the contexts of each checkpointed region of a pass.

    A region is identified by its turn, because every pass runs its regions in the same order. If a region begins after
    another one has run again, it begins a new pass.

    If the program was recorded with its checkpoints, its regions are known. If not, `Turns` assumes that they are the
    repeated modules, until the first pass has shown the real ones. If a region calls other ops than the assumed module,
    it saves nothing from the first different op on.

    Attributes:
        choice: the saved results; None before the regions are known.
    """

    def __init__(self, step: TrainingStep, budget_bytes: int) -> None:
        if (step.pack_read == NONE).all() and not len(step.again_start):
            raise MemwatchError(
                "the recorded block ran no backward, so no region of it is worth a checkpoint; "
                "record a whole training step and plan again"
            )
        self.choice: Choice | None = None
        self._step, self._budget_bytes = step, budget_bytes
        self._first_pass = FirstPass(_CONTEXTS, step.device)
        self._has_warned = False
        self._sizes: dict[int, Sizes] = {}
        self._overloads_seen: list[list[str]] = []
        self._turn = 0
        self._count = 0
        self._depth = 0
        self._has_run_again = False
        self._is_known = False
        self._expected: dict[int, list[str]] = {}
        if own := own_regions(step):
            self._is_known = True
            self._choose_saved(own_timeline(step, own), [region for region, _, _ in own])
        elif regions := likely_regions(step):
            self._expected = {region.key: region.overloads(step) for region in reversed(regions)}
            self._choose_saved(simulate(step, regions), regions)

    def contexts(self, *, strict: bool = False) -> Contexts:
        """Return the contexts of the region that begins now.

        Raises:
            BudgetError: if `strict`, checkpoints of the regions are above the budget.
        """
        if not torch.is_grad_enabled() or self._depth:
            return contextlib.nullcontext(), contextlib.nullcontext()  # inside a region that runs again
        if self._has_run_again:
            self._begin_pass()
        turn = self._turn
        self._turn += 1
        if not self._is_known:
            return self._observe(turn)
        assert self.choice is not None, "known regions have their choice"
        if not self._has_warned:
            self._has_warned = True
            warn_if_above(self.choice, self._budget_bytes, _CONTEXTS, strict=strict, stacklevel=4)
        self._first_pass.strict = strict
        around = [self._run_again, *self._first_pass.region(self.choice.pass_bytes)]
        return contexts_of(self._sizes.get(turn % max(self._count, 1)), around)

    def _begin_pass(self) -> None:
        self._turn = 0
        self._has_run_again = False
        if not self._is_known and any(self._overloads_seen):
            self._is_known = True
            regions = match(self._step, self._overloads_seen)
            found = {region.key for region in regions}
            num_seen = len(self._overloads_seen)
            if len(found) < num_seen:
                warnings.warn(
                    f"plan.checkpoint_contexts: {num_seen - len(found)} of {num_seen} checkpointed regions are not in "
                    "the recording, and are computed again as a whole; record the step that is trained, and plan again",
                    stacklevel=4,
                )
                self._first_pass.is_over = True  # the plan's figure is for other regions, so measure nothing
            self._count = num_seen
            self._choose_saved(simulate(self._step, regions), regions)

    def _choose_saved(self, timeline: Timeline, regions: list[Region]) -> None:
        self.choice = choose_saved(timeline, regions)
        self._count = max(self._count, 1 + max((region.key for region in regions), default=0))
        self._sizes = sizes_by_region(self.choice)

    def _observe(self, turn: int) -> Contexts:
        names: list[str] = []
        self._overloads_seen.append(names)
        planned = policy_of(self._sizes.get(turn, {}))
        known = {plain_name(name) for name in self._step.overloads}
        expected = map(plain_name, self._expected.get(turn, []))
        is_expected = True

        def policy(context: Any, op: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            nonlocal is_expected
            name = plain_name(str(op))
            if not context.is_recompute:
                names.append(str(op))
                is_expected = is_expected and (name not in known or next(expected, "") == name)
            return planned(context, op) if is_expected else CheckpointPolicy.PREFER_RECOMPUTE

        forward, again = create_selective_checkpoint_contexts(policy)
        return forward, RunAgain(again, (self._run_again,))

    @contextlib.contextmanager
    def _run_again(self) -> Iterator[None]:
        self._has_run_again = True
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def warn_if_above(choice: Choice, budget_bytes: int, what: str, *, strict: bool, stacklevel: int) -> None:
    """Warn if checkpoints cannot keep the budget. The warning has both figures.

    Raises:
        BudgetError: instead of the warning, if `strict`.
    """
    if choice.peak_bytes <= budget_bytes:
        return
    message = (
        f"{what}: the budget is {format_bytes(budget_bytes)}, and with checkpoints of these regions the peak "
        f"increase is {format_bytes(choice.peak_bytes)}"
    )
    if strict:
        raise BudgetError(message, None, choice.peak_bytes, advice=_SMALLER)
    warnings.warn(f"{message}; {_SMALLER}", stacklevel=stacklevel)


def training_step(plan: Plan) -> TrainingStep:
    """Return the recorded step of a plan.

    Raises:
        MemwatchError: the plan was not made from a recorded step, or an older memwatch wrote it.
    """
    content = plan.step_content()
    if content is None:
        raise MemwatchError(
            "this plan holds no training step, because it is of a Graph or its file is of an older memwatch; "
            "plan a recording again: memwatch.plan(prof, budget=...)"
        )
    try:
        return TrainingStep.from_content(content)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanFileError(
            f"the training step of this plan is damaged ({error!r}); write it again"
        ) from None


def turns_of(plan: Plan) -> Turns:
    """Return the object that makes the contexts of checkpointed regions for a plan."""
    budget_bytes = plan.peak_increase_bytes if plan.budget_bytes is None else plan.budget_bytes
    return Turns(training_step(plan), budget_bytes)
