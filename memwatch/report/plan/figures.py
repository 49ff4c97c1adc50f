"""The figures of a plan and of its replay, and the phrases that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from memwatch.errors import MemwatchError
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.planner.plan import Plan


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
