"""`plan.checkpoint_contexts`: contexts for the regions that a program checkpoints, found by their turn in the pass."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from memwatch.capture.schema import NONE
from memwatch.errors import MemwatchError
from memwatch.planner.errors import BudgetError
from memwatch.planner.plan import PlanFileError
from memwatch.replay.checkpoints.choose import Choice, choose_saved
from memwatch.replay.checkpoints.contexts import FirstPass, RunAgain, contexts_of, policy_of, sizes_by_region
from memwatch.replay.checkpoints.regions import (
    Region,
    likely_regions,
    match,
    own_regions,
    plain_name,
)
from memwatch.replay.checkpoints.step import TrainingStep
from memwatch.replay.checkpoints.timeline import own_timeline, simulate
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch._torch.dispatch import OpOverload
    from memwatch.planner.plan import Plan
    from memwatch.replay.checkpoints.contexts import Contexts, Sizes
    from memwatch.replay.checkpoints.timeline import Timeline


_WHAT: Final = "plan.checkpoint_contexts"
_ADVICE: Final = 'make the regions smaller, or use backend="memwatch"'


class Turns:
    """Returns the contexts of each checkpointed region of a pass.

    A region is known by its turn, because every pass runs its regions in the same order. A region that begins after
    another one has run again begins a new pass. If the recorded program had checkpoints, its regions are known. If not,
    the regions are assumed to be its repeated modules, until the first pass has shown them. A region that calls other
    ops than the module saves nothing from the first different op on.

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
        self._first_pass = FirstPass(_WHAT, step.device)
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
            warn_if_above(self.choice, self._budget_bytes, _WHAT, strict=strict, stacklevel=4)
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
    """Warn of a budget that checkpoints cannot keep, with both figures.

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
        raise BudgetError(message, None, choice.peak_bytes, advice=_ADVICE)
    warnings.warn(f"{message}; {_ADVICE}", stacklevel=stacklevel)


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
