"""The time limit of a search.

The search of a small program ends long before the limit, so the seed alone decides its plan. The limit counts the CPU
time of this process. On a shared machine, the process often waits for the CPU. If the limit counted the time on the
wall, a search would find a worse plan there than on an idle machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE: Final = 3.0
"""Time on the wall after which a search ends in any case, as a multiple of its limit. A guess."""


def working_time(
    wall_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
) -> Callable[[], float]:
    """Return a function that returns the working time of the process since now (seconds).

    Working time is CPU time, but never more than the time on the wall. With many threads CPU time runs faster.

    Args:
        wall_s: the time on the wall (seconds).
        cpu_s: CPU time of the process (seconds).
    """
    start_wall_s, start_cpu_s = wall_s(), cpu_s()

    def now_s() -> float:
        passed_s = wall_s() - start_wall_s
        return max(min(cpu_s() - start_cpu_s, passed_s), passed_s / _PATIENCE)

    return now_s


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline, and the function that returns the time. All searches of one call of the planner share it.

    Attributes:
        deadline_s: time at which the search has to end (seconds, on the scale of `now_s`).
        now_s: returns the present time (seconds).
    """

    deadline_s: float
    now_s: Callable[[], float]

    @classmethod
    def of(cls, limit_s: float, now_s: Callable[[], float] | None = None) -> Clock:
        """Return a clock that is over after `limit_s` seconds of work.

        Args:
            limit_s: the limit (seconds).
            now_s: returns the time (seconds). Tests pass their own function, so that no test waits.
        """
        now_s = now_s or working_time()
        return cls(now_s() + limit_s, now_s)

    def is_over(self) -> bool:
        """Return True after the deadline."""
        return self.now_s() >= self.deadline_s

    def left_s(self) -> float:
        """Return the seconds up to the deadline; 0 after it."""
        return max(0.0, self.deadline_s - self.now_s())

    def share(self, ratio: float) -> Clock:
        """Return a clock for one part of the search, with this share of the time that is left."""
        return Clock(self.now_s() + ratio * self.left_s(), self.now_s)
