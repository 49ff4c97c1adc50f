"""The time limit of a search.

Small programs finish long before their limit, so the limit never decides their plan: the seed alone does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline, and the function that tells the time.

    One clock is made per call of the planner and handed to everything that searches.

    Attributes:
        deadline_s: time at which the search has to end (seconds, on the scale of `now_s`).
        now_s: returns the present time (seconds). Tests hand in their own, so that no test waits.
    """

    deadline_s: float
    now_s: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, limit_s: float, now_s: Callable[[], float] = time.monotonic) -> Clock:
        """Return a clock whose time is up after `limit_s` seconds."""
        return cls(now_s() + limit_s, now_s)

    def is_over(self) -> bool:
        """Return True when the time is up."""
        return self.now_s() >= self.deadline_s

    def left_s(self) -> float:
        """Return the seconds that are left, 0 when the time is up."""
        return max(0.0, self.deadline_s - self.now_s())

    def share(self, ratio: float) -> Clock:
        """Return a clock for one part of the search: its time is up when `ratio` of what is left is used."""
        return Clock(self.now_s() + ratio * self.left_s(), self.now_s)
