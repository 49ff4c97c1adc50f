"""How long the threads of this process have been on a processor."""

from __future__ import annotations

import sys
import time

from memwatch.signal_handlers import pass_on


def cpu_time_ns(native_id: int | None) -> int | None:
    """Return how long a thread has been on a processor, None if it has ended or the system does not say.

    The number of a thread's clock is part of Linux's interface (`CPUCLOCK_PERTHREAD` and `CPUCLOCK_SCHED`). It is
    not asked for by `pthread_getcpuclockid`, which may crash for a thread that has just ended.
    """
    if not sys.platform.startswith("linux") or native_id is None:
        return None
    try:
        return time.clock_gettime_ns(~native_id << 3 | 6)
    except OSError as error:
        pass_on(error)
        return None
