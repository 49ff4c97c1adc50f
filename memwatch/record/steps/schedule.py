"""Schedules, which choose the steps to record. They have the same meaning as in torch.profiler.

A schedule is any function from the number of a step to a `ProfilerAction`, such as `torch.profiler.schedule` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from torch.profiler import ProfilerAction

from memwatch.errors import MemwatchError

Schedule: TypeAlias = Callable[[int], ProfilerAction]
KEEPS: Final = ("all", "peaks")
"""Which recorded steps are kept: all, or those that set a new peak or fail."""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Record some steps of every cycle; see `memwatch.schedule`."""

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action in a step, counted from 0."""
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step - self.skip_first, length)
        if cycle < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return ProfilerAction.NONE
        return ProfilerAction.WARMUP if place < self.wait + self.warmup else ProfilerAction.RECORD


@dataclass(frozen=True)
class Sampled:
    """Record the first steps, and then every Nth step: `memwatch run --every N --first N`.

    Attributes:
        every: record the steps whose numbers are multiples of this; 0 for none.
        first: number of steps that are recorded at the start.
    """

    every: int = 0
    first: int = 0

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action in a step, counted from 0."""
        is_due = step < self.first or (self.every and step % self.every == 0)
        return ProfilerAction.RECORD if is_due else ProfilerAction.NONE


def schedule(
    *, skip_first: int = 0, wait: int = 0, warmup: int = 0, active: int = 1, repeat: int = 0
) -> Schedule:
    """Return a schedule for `memwatch.profile(schedule=...)`: which steps are recorded.

    Every cycle waits, warms up and records. The exact live curve also covers the steps that are not recorded.

    Args:
        skip_first: steps before the first cycle.
        wait: steps of each cycle that are not recorded.
        warmup: steps of each cycle that are observed but not kept, so that the memory they leave behind has names.
        active: steps of each cycle that are recorded.
        repeat: number of cycles. 0 repeats to the end.

    Raises:
        MemwatchError: a count is negative, or nothing would ever be recorded.
    """
    counts = {"skip_first": skip_first, "wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
    for name, count in counts.items():
        if count < (name == "active"):
            raise MemwatchError(
                f"schedule({name}={count}) is too small; `active` is at least 1 and no count is negative"
            )
    return Cycle(**counts)
