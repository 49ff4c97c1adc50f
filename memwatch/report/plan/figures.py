"""The figures of a plan and of its replay, and the phrases that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pandas as pd

from memwatch.analysis.texts import TEXT
from memwatch.errors import MemwatchError
from memwatch.planner.peak import StepKind, program_peak, simulate
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph
    from memwatch.planner.plan import Plan
    from memwatch.report.plan.moves import Places


class Replayed(Protocol):
    """The part of a replay's result that reports show."""

    @property
    def peak_increase_bytes(self) -> int:
        """Measured peak increase, bytes."""

    @property
    def planned_bytes(self) -> int:
        """Peak increase that the plan predicted, bytes."""

    @property
    def identical(self) -> bool | None:
        """Whether the results are bitwise equal. None if there is nothing to compare."""

    @property
    def max_abs_diff(self) -> float:
        """Largest absolute difference of any element."""

    @property
    def tolerance(self) -> float:
        """Largest difference between two runs of the program itself."""

    @property
    def duration_s(self) -> float:
        """Time the run took, seconds."""

    @property
    def num_checked(self) -> int:
        """How many storages were compared."""

    @property
    def synthetic(self) -> bool:
        """Whether the inputs were made up."""


class PlanMismatchError(MemwatchError):
    """The result of a replay was passed with a plan that it does not belong to."""


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Peak increases of program and plan, and their lower bound, in bytes. The plan's cost, in FLOPs and in time."""

    program_bytes: int
    plan_bytes: int
    bound_bytes: int
    budget_bytes: int | None
    extra_cost_ratio: float
    moved_bytes: int
    extra_time_ratio: float | None = None

    @classmethod
    def of(cls, plan: Plan) -> PlanFigures:
        """Return the figures of a plan."""
        return cls(
            plan.program_peak_increase_bytes,
            plan.peak_increase_bytes,
            plan.lower_bound_bytes,
            plan.budget_bytes,
            plan.extra_cost_ratio,
            plan.moved_bytes,
            plan.extra_time_ratio,
        )

    @property
    def share_ratio(self) -> float:
        """The plan's peak increase as a share of the program's."""
        return self.plan_bytes / self.program_bytes if self.program_bytes else 1.0

    @property
    def gap_bytes(self) -> int:
        """Bytes by which the plan is above the lower bound."""
        return self.plan_bytes - self.bound_bytes

    @property
    def gap_words(self) -> str:
        """The gap as a phrase."""
        if not self.gap_bytes:
            return "none, this is the lowest plan"
        share = f" ({100 * self.gap_bytes / self.bound_bytes:.1f} %)" if self.bound_bytes else ""
        return f"{format_bytes(self.gap_bytes)}{share}"


def check_belongs(plan: Plan, replayed: Replayed) -> None:
    """Raise `PlanMismatchError` unless the result belongs to this plan."""
    if replayed.planned_bytes != plan.peak_increase_bytes:
        raise PlanMismatchError(
            f"the result is of another plan, with a peak increase of {format_bytes(replayed.planned_bytes)}; "
            f"this plan has {format_bytes(plan.peak_increase_bytes)}; replay this plan and pass its result"
        )


def peak_words(replayed: Replayed) -> str:
    """Return a phrase that compares the measured peak with the predicted one."""
    more = replayed.peak_increase_bytes - replayed.planned_bytes
    if not more:
        return "as planned, to the byte"
    return f"{format_bytes(abs(more))} {'above' if more > 0 else 'below'} the plan"


def check_words(replayed: Replayed) -> str:
    """Return a phrase about the comparison of the results."""
    if replayed.identical is None:
        return "made-up inputs of the recorded shapes, nothing to compare"
    if replayed.identical:
        return f"{replayed.num_checked:,} storages bitwise equal"
    own = f"; two runs of the program differ by {replayed.tolerance:g}" if replayed.tolerance else ""
    return f"not identical: largest difference {replayed.max_abs_diff:g}{own}"


BINS: Final = 2000
NONE: Final = -1
"""Step of a curve that has ended."""


def plan_curves(plan: Plan, places: Places, bins: int = BINS) -> pd.DataFrame | None:
    """Return the live bytes of program and plan during each step.

    Bytes that are live before the first step are left out.

    Args:
        plan: the plan.
        places: names of the ops.
        bins: the largest number of rows. If there are more steps, each row shows the highest of equally many steps.

    Returns:
        A frame with the step, its live bytes and its action, for the program and for the plan. None for a plan
        that was read from a file, because the file does not hold the program.
    """
    graph = plan.graph
    if graph is None:
        return None
    before = program_peak(graph).live_bytes - graph.baseline_bytes
    after = simulate(graph, plan.schedule).live_bytes - graph.baseline_bytes
    width = max(1, -(-max(len(before), len(after)) // bins))
    rows = -(-max(len(before), len(after)) // width)
    program_step, plan_step = _highest(before, width, rows), _highest(after, width, rows)
    plan_words = _PlanWords(plan, graph, places)
    curves: pd.DataFrame = pd.DataFrame(
        {
            "at": np.arange(rows, dtype=np.int64) * width,
            "program_step": program_step,
            "program_bytes": _at(before, program_step),
            "program_what": pd.Series(
                [str(places.of(graph.op_names[step])) if step >= 0 else "" for step in program_step.tolist()],
                dtype=TEXT,
            ),
            "plan_step": plan_step,
            "plan_bytes": _at(after, plan_step),
            "plan_what": pd.Series([plan_words(step) for step in plan_step.tolist()], dtype=TEXT),
        }
    )
    return curves


class _PlanWords:
    """Describes the steps of a plan."""

    def __init__(self, plan: Plan, graph: Graph, places: Places) -> None:
        self._schedule, self._graph, self._places = plan.schedule, graph, places
        self._copies = plan.schedule.copies()

    def __call__(self, step: int) -> str:
        if step < 0:
            return ""
        kind, index = int(self._schedule.kind[step]), int(self._schedule.index[step])
        if kind != StepKind.COMPUTE:
            return "moves a buffer out" if kind == StepKind.OFFLOAD else "moves a buffer back"
        place = self._places.of(self._graph.op_names[index])
        return f"{place}, computed again" if self._copies[step] else str(place)


def _highest(live: NDArray[np.int64], width: int, rows: int) -> NDArray[np.int64]:
    """Return the first highest step of each stretch of `width` steps, NONE beyond the end."""
    lowest = np.iinfo(np.int64).min
    padded = np.full(rows * width, lowest, dtype=np.int64)
    padded[: len(live)] = live
    step = padded.reshape(rows, width).argmax(axis=1) + np.arange(rows) * width
    return np.where(step < len(live), step, NONE)


def _at(live: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(step >= 0, live[np.maximum(step, 0)] if len(live) else 0, 0)
