"""How often the live view reads the file: no more than its share of the machine allows."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

LEAST_S: Final = 1.0
"""Between two readings at least: the program flushes every half second."""
SHARE_RATIO: Final = 0.01
"""The most of the machine's processor time that the view takes."""
_NICE: Final = 10


class Pace:
    """Say how long to wait before the next reading, so that it is paid for when it is made.

    The next reading is expected to take twice what the last one took: the recording is longer then.

    Args:
        processors: how many the machine has; by default those that this process may run on.
    """

    def __init__(self, processors: int | None = None) -> None:
        self._share_ratio = SHARE_RATIO * (processors or len(os.sched_getaffinity(0)))
        self._cpu_s, self._time_s = time.process_time(), time.monotonic()
        self._last_cpu_s = self._cpu_s

    def wait_s(self) -> float:
        """Return the seconds to wait before the next reading."""
        cpu_s, time_s = time.process_time(), time.monotonic()
        last_s, self._last_cpu_s = cpu_s - self._last_cpu_s, cpu_s
        due_s = (cpu_s - self._cpu_s + 2 * last_s) / self._share_ratio
        return max(LEAST_S, self._time_s + due_s - time_s)


def step_behind_the_program() -> None:
    """Lower the priority of this process: where processors are scarce, the program goes first."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
