"""The time limit of a search.

Small programs finish long before their limit, so the limit never decides their plan: the seed alone does. What counts
is the time that this process works. On a machine that is shared with others the clock on the wall goes on while the
search waits for its turn, and a plan that others would have found in time would be missed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE: Final = 3.0
"""So many times the limit may pass on the wall at most, if the process gets no more of the machine."""


def working_time(
    wall_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
) -> Callable[[], float]:
    """Return a function that tells how long the process has worked from now on (seconds).

    It never runs ahead of the clock on the wall: many threads at work are no reason to stop early.

    Args:
        wall_s: the clock on the wall (seconds).
        cpu_s: CPU time of the process (seconds).
    """
    start_wall_s, start_cpu_s = wall_s(), cpu_s()

    def now_s() -> float:
        passed_s = wall_s() - start_wall_s
        return max(min(cpu_s() - start_cpu_s, passed_s), passed_s / _PATIENCE)

    return now_s


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline, and the function that tells the time.

    One clock is made per call of the planner and handed to everything that searches.

    Attributes:
        deadline_s: time at which the search has to end (seconds, on the scale of `now_s`).
        now_s: returns the present time (seconds).
    """

    deadline_s: float
    now_s: Callable[[], float]

    @classmethod
    def of(cls, limit_s: float, now_s: Callable[[], float] | None = None) -> Clock:
        """Return a clock whose time is up after `limit_s` seconds of work.

        Args:
            limit_s: the limit (seconds).
            now_s: tells the time (seconds). Tests hand in their own, so that no test waits.
        """
        now_s = now_s or working_time()
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
