"""Schedules: which steps are recorded, with the meaning that torch.profiler gives its own.

A schedule is any function from the number of a step to a `ProfilerAction`, as `torch.profiler.schedule` returns one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from torch.profiler import ProfilerAction

from memwatch.errors import MemwatchError

Schedule: TypeAlias = Callable[[int], ProfilerAction]
KEEPS: Final = ("all", "peaks")
"""Which of the recorded steps stay: all, or those that set a new peak or fail."""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Record some steps of every cycle; see `memwatch.schedule`."""

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def __call__(self, step: int) -> ProfilerAction:
        """Return what happens in a step, counted from 0."""
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step - self.skip_first, length)
        if cycle < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return ProfilerAction.NONE
        return ProfilerAction.WARMUP if place < self.wait + self.warmup else ProfilerAction.RECORD


@dataclass(frozen=True)
class Sampled:
    """Record the first steps, and then one of so many: `memwatch run --every N --first N`.

    Attributes:
        every: record the steps whose numbers are multiples of this; 0 for none.
        first: record so many steps at the start, too.
    """

    every: int = 0
    first: int = 0

    def __call__(self, step: int) -> ProfilerAction:
        """Return what happens in a step, counted from 0."""
        is_due = step < self.first or (self.every and step % self.every == 0)
        return ProfilerAction.RECORD if is_due else ProfilerAction.NONE


def schedule(
    *, skip_first: int = 0, wait: int = 0, warmup: int = 0, active: int = 1, repeat: int = 0
) -> Schedule:
    """Return a schedule for `memwatch.profile(schedule=...)`: which steps are recorded.

    Every cycle waits, warms up and records; between recorded steps the exact live curve goes on.

    Args:
        skip_first: steps before the first cycle.
        wait: steps of each cycle that are not recorded.
        warmup: steps of each cycle that are observed and not kept, so that what they leave behind is named.
        active: steps of each cycle that are recorded.
        repeat: how many cycles there are; 0 goes on to the end.

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
