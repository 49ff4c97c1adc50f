"""The time limit of a search; small programs finish long before it, so it never decides their result."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline on the monotonic clock."""

    deadline_s: float

    @classmethod
    def of(cls, limit_s: float) -> Clock:
        """Start a clock that is over after so many seconds."""
        return cls(time.monotonic() + limit_s)

    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline_s

    def left_s(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self.deadline_s - time.monotonic())

    def share(self, ratio: float) -> Clock:
        """Return a clock that is over when this share of the remaining time is used."""
        return Clock(time.monotonic() + ratio * self.left_s())
