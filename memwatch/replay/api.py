"""Plan a recorded program, execute a plan and check its results, and apply a plan to a model.

A recording has two parts. The capture has the tables, and can be saved. The replay inputs are live tensors and bytes
that only the recording process has. Without them a replay makes synthetic inputs.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from memwatch.capture import Capture
from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError, Graph
from memwatch.planner.graph import fingerprint
from memwatch.planner.plan import Plan, describe_moves
from memwatch.planner.plan_search import plan_graph
from memwatch.planner.request import op_text
from memwatch.progress import working
from memwatch.reading import Reading, load
from memwatch.replay.checkpoints.apply import AppliedPlan, apply_step
from memwatch.replay.checkpoints.contexts import training_step
from memwatch.replay.checkpoints.step import read_step
from memwatch.replay.graph import Recorded, namer_of, recorded_program, with_readable_names
from memwatch.replay.run import check_inputs, replay_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from memwatch.encoding import ReplayInputs
    from memwatch.planner.request import OrderChoice
    from memwatch.replay.run import ReplayResult

Source: TypeAlias = "Reading | Capture | Graph | str | os.PathLike[str]"


@dataclass(frozen=True)
class Replayable:
    """A recorded program and the inputs of its replay.

    Attributes:
        capture: the recorded tables.
        recorded: the program and its graph.
        inputs: the live part of the recording; None if there is only a capture.
    """

    capture: Capture
    recorded: Recorded
    inputs: ReplayInputs | None


@dataclass(frozen=True, eq=False)
class RecordedPlan(Plan):
    """A plan of a recorded program. It holds the replay inputs of the recording, so it can be replayed."""

    program: Replayable | None = field(default=None, repr=False)

    def step_content(self) -> Mapping[str, Any]:
        """Return the content of the recorded `TrainingStep`, for training with the plan."""
        return self._step_content

    @cached_property
    def _step_content(self) -> Mapping[str, Any]:
        assert self.program is not None, "a recorded plan has a program"
        return read_step(self.program.capture, self.program.recorded).content()


# Each recording is read once. Several plans of it share one graph, because the planner remembers its plans by graph.
_known: WeakKeyDictionary[Any, tuple[Capture, Replayable]] = WeakKeyDictionary()


def plan(
    source: Source,
    *,
    budget: int | float | str | None = None,
    order: OrderChoice = "auto",
    recompute: bool = True,
    offload: bool = False,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> Plan:
    """Return the cheapest way to run a recorded program within a budget: reordered, recomputed, offloaded.

    Args:
        source: a profile recorded with `memwatch.profile(replay=True)`, a loaded capture or its path, or a
            `memwatch.planner.Graph`.
        budget: peak increase allowed: bytes, ``"512 MiB"``, or ``"60%"`` of the program's own. None: the
            lowest peak that an order alone, without extra cost, can reach.
        order: ``"auto"``, ``"program"``, or a function Graph -> list of op indices.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back.
        time_limit_s: when to stop searching (seconds of work).
        seed: seed of the random moves.

    Returns:
        The plan; `memwatch.replay` executes and checks it.

    Raises:
        BudgetError: no plan fits; `.best` is the lowest plan found.
        OptionError: an argument has a wrong type or is out of its range.
        UnsupportedOpError: an op cannot be replayed; the message names it and its line.
        MemwatchError: the source was recorded without `replay=True`.
    """
    program = None if isinstance(source, Graph) else replayable(source)
    graph = source if program is None else program.recorded.graph
    assert isinstance(graph, Graph)
    with working("memwatch plan"), _best_is_replayable(program):
        found = plan_graph(
            graph,
            budget=budget,
            order=order,
            recompute=recompute,
            offload=offload,
            time_limit_s=time_limit_s,
            seed=seed,
            name_of=op_text if program is None else namer_of(program.recorded),
        )
    return found if program is None else _with_program(found, program)


def replay(plan: Plan, source: Source | None = None) -> ReplayResult:
    """Execute a plan on the recorded real tensors, measure its peak, and compare all results.

    The program's own tensors are not changed: inputs that the program writes are replaced by copies of their
    recorded bytes, and the random generators are put back. A capture alone is replayed with synthetic inputs.

    Args:
        plan: a plan that `memwatch.plan` returned or that was read from a file.
        source: the recording that a plan read from a file belongs to.

    Returns:
        The measured peak increase, whether everything was bitwise equal, and how long it took.

    Raises:
        ReplayError: an input changed since it was recorded, or an op failed or returned another value or shape.
        MemwatchError: the plan does not belong to this recorded program.
    """
    program = plan.program if isinstance(plan, RecordedPlan) and source is None else None
    if program is None:
        if source is None or isinstance(source, Graph):
            raise MemwatchError(
                "this plan comes from a file or a Graph and holds no recorded program; "
                "pass the recording too: replay(plan, source)"
            )
        program = replayable(source)
    if fingerprint(program.recorded.graph) != plan.fingerprint:
        raise MemwatchError(
            "the plan was made for another program than this recording; plan this recording again"
        )
    return replay_schedule(program.recorded, plan.schedule, program.inputs, plan.peak_increase_bytes)


def apply_plan(model: nn.Module, plan: Plan, *, strict: bool = False) -> AppliedPlan:
    """Checkpoint modules of a model, and save some of their results, so that a step stays within a plan's budget.

    Results, gradients and random numbers stay the same bit for bit. Statistics of batch norms are written once.
    memwatch checkpoints repeated blocks of the recorded module tree, as many as the budget requires. The peak is never
    above the peak of plain checkpoints of the same modules. The first step is measured, from the first of these modules
    to the end of the backward. If it takes more than the plan says, a warning has both figures.

    Args:
        model: the model that was recorded, or a new one of the same structure.
        plan: a plan of a whole training step, recorded without checkpoints; it may come from a file.
        strict: whether to raise if checkpoints cannot keep the budget, or if the first step takes more than the plan
            says. The model is then as it was before. Otherwise a warning has both figures.

    Returns:
        The checkpointed modules and the peak increase to expect. `undo()` restores the model.

    Raises:
        BudgetError: with `strict`, checkpoints cannot keep the budget.
        MemwatchError: the plan was not made from a recorded training step, or is for another model.
    """
    budget_bytes = plan.peak_increase_bytes if plan.budget_bytes is None else plan.budget_bytes
    return apply_step(model, training_step(plan), budget_bytes, strict=strict)


def replayable(source: Reading | Capture | str | os.PathLike[str]) -> Replayable:
    """Return the recorded program of a source; the same recording always returns the same object.

    Raises:
        MemwatchError: the source was recorded without `replay=True`.
        UnsupportedOpError: an op cannot be replayed.
    """
    if isinstance(source, (str, os.PathLike)):
        recording = load(source)
    else:
        recording = Reading(source) if isinstance(source, Capture) else source
    capture = recording.capture
    known = _known.get(recording)
    if known is None or known[0] is not capture:
        inputs: ReplayInputs | None = getattr(recording, "_replay_inputs", None)
        recorded = recorded_program(capture, recording.device)
        if inputs is not None:
            check_inputs(recorded.program, inputs)
        known = _known[recording] = (capture, Replayable(capture, recorded, inputs))
    return known[1]


def _with_program(found: Plan, program: Replayable) -> RecordedPlan:
    """Return the plan with its program, and with moves that name ops and lines instead of numbers."""
    values = {item.name: getattr(found, item.name) for item in dataclasses.fields(Plan)}
    values["moves"] = describe_moves(with_readable_names(program.recorded), found.schedule)
    return RecordedPlan(**values, program=program)


@contextmanager
def _best_is_replayable(program: Replayable | None) -> Iterator[None]:
    """If the block raises a `BudgetError`, attach the program to its best plan, so that this plan can be replayed."""
    try:
        yield
    except BudgetError as error:
        if program is not None and isinstance(error.best, Plan):
            error.best = _with_program(error.best, program)
        raise
