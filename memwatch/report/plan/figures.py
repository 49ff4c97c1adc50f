"""The figures of a plan and of its replay, and the words that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from memwatch.errors import MemwatchError
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.planner.plan import Plan


class Replayed(Protocol):
    """What a report reads of a replay's result."""

    @property
    def peak_increase_bytes(self) -> int:
        """Measured peak increase, bytes."""

    @property
    def planned_bytes(self) -> int:
        """What the plan promised, bytes."""

    @property
    def identical(self) -> bool | None:
        """Whether the results are bitwise equal; None where there is nothing to compare."""

    @property
    def max_abs_diff(self) -> float:
        """Largest absolute difference of any element."""

    @property
    def tolerance(self) -> float:
        """By how much the program differs from itself."""

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
    """A replay's result that is shown beside a plan it does not belong to."""


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Peak increases (bytes) before and after, and what lies between."""

    program_bytes: int
    plan_bytes: int
    bound_bytes: int
    budget_bytes: int | None
    extra_cost_ratio: float
    moved_bytes: int

    @classmethod
    def of(cls, plan: Plan) -> PlanFigures:
        """Read them off a plan."""
        return cls(
            plan.program_peak_increase_bytes,
            plan.peak_increase_bytes,
            plan.lower_bound_bytes,
            plan.budget_bytes,
            plan.extra_cost_ratio,
            plan.moved_bytes,
        )

    @property
    def share_ratio(self) -> float:
        """The plan's peak increase as a share of the program's."""
        return self.plan_bytes / self.program_bytes if self.program_bytes else 1.0

    @property
    def gap_bytes(self) -> int:
        """How far the plan is above what no plan can beat."""
        return self.plan_bytes - self.bound_bytes

    @property
    def gap_words(self) -> str:
        """Say it."""
        if not self.gap_bytes:
            return "none: no plan is lower"
        share = f" ({100 * self.gap_bytes / self.bound_bytes:.1f} %)" if self.bound_bytes else ""
        return f"{format_bytes(self.gap_bytes)}{share}"


def check_belongs(plan: Plan, replayed: Replayed) -> None:
    """Raise unless the result is of this plan."""
    if replayed.planned_bytes != plan.peak_increase_bytes:
        raise PlanMismatchError(
            f"the replay was of a plan for {format_bytes(replayed.planned_bytes)}, "
            f"this one is for {format_bytes(plan.peak_increase_bytes)}; replay this plan and pass its result"
        )


def peak_words(replayed: Replayed) -> str:
    """Compare the measured with the planned peak."""
    more = replayed.peak_increase_bytes - replayed.planned_bytes
    if not more:
        return "as planned, to the byte"
    return f"{format_bytes(abs(more))} {'above' if more > 0 else 'below'} the plan"


def check_words(replayed: Replayed) -> str:
    """Say what comparing the results gave."""
    if replayed.identical is None:
        return "made-up inputs of the recorded shapes, nothing to compare"
    if replayed.identical:
        return f"{replayed.num_checked:,} storages bitwise equal"
    own = f"; two runs of the program differ by {replayed.tolerance:g}" if replayed.tolerance else ""
    return f"not identical: largest difference {replayed.max_abs_diff:g}{own}"
