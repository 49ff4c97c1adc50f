"""The result of a replay: measured peak, differences, time."""

from __future__ import annotations

from dataclasses import dataclass

from memwatch.sizes import format_bytes
from memwatch.text import ShownAsText


@dataclass(frozen=True)
class ReplayResult(ShownAsText):
    """A plan, executed and checked.

    Attributes:
        peak_increase_bytes: most bytes that the run allocated and held at once, by the allocator's events.
        planned_bytes: peak increase that the plan predicts.
        identical: whether everything the program can still reach has the same bytes as after the program, and
            the random generators have the same state. None for synthetic inputs, where nothing is compared.
        max_abs_diff: largest absolute difference of any element; 0.0 when identical, nan when nothing is
            compared.
        tolerance: largest difference between two runs of the program in its own order. It is 0.0 where kernels
            repeat their results bit for bit, as on the CPU, and above where they do not.
        duration_s: time the run took (s).
        moved_bytes: bytes that were moved out and back.
        num_checked: how many storages were compared.
        synthetic: whether the inputs were made up, because only the capture was there.
        differs_in: op and line that left the first result that differs; empty where none does.
    """

    peak_increase_bytes: int
    planned_bytes: int
    identical: bool | None
    max_abs_diff: float
    tolerance: float
    duration_s: float
    moved_bytes: int
    num_checked: int
    synthetic: bool
    differs_in: str = ""

    @property
    def within_tolerance(self) -> bool:
        """Whether the results differ by no more than the program differs from itself."""
        return self.max_abs_diff <= self.tolerance

    def __str__(self) -> str:
        peak = f"replayed: peak increase {format_bytes(self.peak_increase_bytes)}"
        if self.peak_increase_bytes != self.planned_bytes:
            peak += f" (planned {format_bytes(self.planned_bytes)})"
        if self.synthetic:
            checked = "synthetic inputs, nothing to compare"
        elif self.identical:
            checked = f"{self.num_checked} storages bitwise equal"
        else:
            checked = f"largest difference {self.max_abs_diff:g}"
            if self.differs_in:
                checked += f", first in the result of {self.differs_in}"
            if self.tolerance:
                checked += f", two runs of the program differ by {self.tolerance:g}"
        moved = f", {format_bytes(self.moved_bytes)} moved" if self.moved_bytes else ""
        return f"{peak}; {checked}; {self.duration_s:.3f} s{moved}"
