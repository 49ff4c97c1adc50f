"""plan() and replay(): from a recorded program to a plan, and from a plan to a checked execution."""

from __future__ import annotations

import dataclasses
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from memwatch.capture import Capture, load
from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError, Graph
from memwatch.planner.fingerprint import fingerprint
from memwatch.planner.moves import describe_moves
from memwatch.planner.plan import Plan
from memwatch.planner.plan_search import OrderChoice, plan_graph
from memwatch.replay.graph import Recorded, in_words, recorded_program
from memwatch.replay.inputs import check_inputs
from memwatch.replay.run import replay_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from memwatch.encoding.replay_inputs import ReplayInputs
    from memwatch.replay.result import ReplayResult
    from memwatch.replay.selective import Regions


class _Recording(Protocol):
    """What `memwatch.profile(replay=True)` and `memwatch.load` give."""

    @property
    def capture(self) -> Capture:
        """The recorded tables."""


Source: TypeAlias = "_Recording | Capture | Graph | str | os.PathLike[str]"


@dataclass(frozen=True)
class Replayable:
    """A recorded program with what replaying it starts from; `kept` is None when only the capture is there."""

    capture: Capture
    recorded: Recorded
    kept: ReplayInputs | None


@dataclass(frozen=True, eq=False)
class RecordedPlan(Plan):
    """A plan of a recorded program; it keeps what the recording kept, so that it can be replayed."""

    program: Replayable | None = field(default=None, repr=False)

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Give the contexts of one region that torch checkpoints as the plan says.

        Pass the method itself: ``checkpoint(block, x, use_reentrant=False,
        context_fn=plan.checkpoint_contexts)``. What the plan keeps for the backward is saved, all else of
        the region is computed again when the backward reaches it. Record the program without checkpoints;
        the regions are found again by the ops they call, and one that was not recorded is computed again
        as a whole. The order of the plan and its moves are not part of it.
        """
        return self._regions.contexts()

    @cached_property
    def _regions(self) -> Regions:
        from memwatch.replay.selective import recorded_regions

        assert self.program is not None, "a recorded plan has a program"
        return recorded_regions(self.program.capture, self.program.recorded, self.schedule)


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
    """Find the cheapest way to run a recorded program within a budget: reorder, recompute, offload.

    Args:
        source: what `memwatch.profile(replay=True)` recorded, a loaded capture or its path, or a
            `memwatch.planner.Graph`.
        budget: peak increase allowed: bytes, ``"512 MiB"``, or ``"60%"`` of the program's own. None: the
            lowest peak that an order alone, without extra cost, can reach.
        order: ``"auto"``, ``"program"``, or a function Graph -> list of op indices.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back.
        time_limit_s: when to stop searching (seconds).
        seed: seed of the random moves.

    Returns:
        The plan; `memwatch.replay` executes and checks it.

    Raises:
        BudgetError: no plan fits; `.best` is the lowest plan found.
        UnsupportedOpError: an op cannot be replayed; names it and its line.
        MemwatchError: the source was recorded without `replay=True`.
    """
    program = None if isinstance(source, Graph) else replayable(source)
    graph = source if program is None else program.recorded.graph
    assert isinstance(graph, Graph)
    with _best_is_replayable(program):
        found = plan_graph(
            graph, budget=budget, order=order, recompute=recompute, offload=offload,
            time_limit_s=time_limit_s, seed=seed,
        )  # fmt: skip
    return found if program is None else _with_program(found, program)


def replay(plan: Plan, source: Source | None = None) -> ReplayResult:
    """Execute a plan on the recorded real tensors, measure its peak, and compare everything it leaves.

    The program's own tensors are not changed: inputs that it writes are run on copies of their recorded
    bytes, and the random generators are put back. A capture alone is replayed with synthetic inputs.

    Args:
        plan: what `memwatch.plan` gave, or a plan read from a file.
        source: the recording that a plan read from a file belongs to.

    Returns:
        The measured peak increase, whether everything was bitwise equal, and how long it took.

    Raises:
        ReplayError: an input changed since it was recorded, or an op failed or gave another value or shape.
        MemwatchError: the plan belongs to no recorded program, or to another one.
    """
    program = plan.program if isinstance(plan, RecordedPlan) and source is None else None
    if program is None:
        if source is None or isinstance(source, Graph):
            raise MemwatchError(
                "this plan knows no recorded program; replay(plan, source) names the recording"
            )
        program = replayable(source)
    if fingerprint(program.recorded.graph) != plan.fingerprint:
        raise MemwatchError("the plan belongs to another program; plan this recording again")
    return replay_schedule(program.recorded, plan.schedule, program.kept, plan.peak_increase_bytes)


def replayable(source: _Recording | Capture | str | os.PathLike[str]) -> Replayable:
    """Read the recorded program of a source; the same object gives the same program each time.

    Raises:
        MemwatchError: the source was recorded without `replay=True`.
        UnsupportedOpError: an op cannot be replayed.
    """
    if isinstance(source, (str, os.PathLike)):
        source = load(source)
    if isinstance(source, Capture):
        return Replayable(source, recorded_program(source), None)
    capture = source.capture
    known = _known.get(source)
    if known is None or known[0] is not capture:
        kept: ReplayInputs | None = getattr(source, "_replay_inputs", None)
        recorded = recorded_program(capture)
        if kept is not None:
            check_inputs(recorded.program, kept)
        known = _known[source] = (capture, Replayable(capture, recorded, kept))
    return known[1]


def _with_program(found: Plan, program: Replayable) -> RecordedPlan:
    values = {item.name: getattr(found, item.name) for item in dataclasses.fields(Plan)}
    values["moves"] = describe_moves(in_words(program.recorded), found.schedule)
    return RecordedPlan(**values, program=program)


@contextmanager
def _best_is_replayable(program: Replayable | None) -> Iterator[None]:
    try:
        yield
    except BudgetError as error:
        if program is not None and isinstance(error.best, Plan):
            error.best = _with_program(error.best, program)
        raise
