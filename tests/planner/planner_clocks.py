"""A clock for tests of time limits: time passes only when it is read, so no test waits."""

from __future__ import annotations

from itertools import count

from memwatch.planner.request import Clock


def clock_of_readings(readings: int) -> Clock:
    """Return a clock whose time is up after it has been read so many times."""
    return Clock.of(readings, count(step=1).__next__)
