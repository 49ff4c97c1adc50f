"""The result of one trial of a way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.fit.way import Way


@dataclass(frozen=True)
class Measurement:
    """The result of one trial of a way.

    Attributes:
        way: the way.
        peak_bytes: the most live bytes of the device; None if the trial failed.
        baseline_bytes: live bytes before the first step.
        step_time_ns: duration of a step, the least of several; None without times.
        results: a digest of the steps' results; None if nothing compares them.
        failure: the reason why the trial failed; "" after a success.
        is_estimate: whether the bytes belong to tensors without memory.
        flops: floating point operations of an estimated step.
    """

    way: Way
    peak_bytes: int | None
    baseline_bytes: int = 0
    step_time_ns: int | None = None
    results: bytes | None = None
    failure: str = ""
    is_estimate: bool = False
    flops: int | None = None

    def fits(self, limit_bytes: int) -> bool:
        """Return True if the step ran and its peak was at or under the limit."""
        return self.peak_bytes is not None and self.peak_bytes <= limit_bytes

    @property
    def cost(self) -> float:
        """The figure that orders ways: measured time, or else floating point operations."""
        return float(self.flops or 0) if self.step_time_ns is None else float(self.step_time_ns)
