"""How often the live view reads the file: no more than its share of the machine allows."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

LEAST_S: Final = 1.0
"""Between two readings at least: the program flushes every second."""
SHARE_RATIO: Final = 0.01
"""The most of the machine's processor time that the view takes."""
_NICE: Final = 10


class Pace:
    """Say how long to wait before the next reading, so that it is paid for when it is made.

    What the view took to start counts as well. It is paid back out of half of the share, so that the screen does not
    stand still meanwhile: from the time on at which it is paid, the view has taken no more than its share in all.

    Args:
        processors: how many the machine has; by default those that this process may run on.
    """

    def __init__(self, processors: int | None = None) -> None:
        self._share_ratio = SHARE_RATIO * (processors or len(os.sched_getaffinity(0)))
        self._start_s: tuple[float, float] | None = None

    def wait_s(self, reading_cpu_s: float) -> float:
        """Return the seconds to wait before the next reading.

        Args:
            reading_cpu_s: what the last one took; the next may take twice that, for the recording is longer then.
        """
        return max(LEAST_S, self.owed_s(reading_cpu_s))

    def owed_s(self, reading_cpu_s: float) -> float:
        """Return the seconds until a reading is paid for; more than was waited for where waiting took time, too.

        Args:
            reading_cpu_s: as for `wait_s`.
        """
        cpu_s, time_s = time.process_time(), time.monotonic()
        if self._start_s is None:
            self._start_s = cpu_s, time_s
        start_cpu_s, passed_s = self._start_s[0], time_s - self._start_s[1]
        after_next_s = cpu_s + 2 * reading_cpu_s
        until_s = min(
            (after_next_s - start_cpu_s) / (self._share_ratio / 2), after_next_s / self._share_ratio
        )
        return until_s - passed_s


def step_behind_the_program() -> None:
    """Lower the priority of this process: where processors are scarce, the program goes first."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
