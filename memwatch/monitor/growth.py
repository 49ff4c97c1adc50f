"""Decide from the history of a row whether it grows, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST_SAMPLES: Final = 12
_PARTS: Final = 4
_LEAST_BYTES: Final = 1 << 20
_LEAST_SHARE_OF_RSS: Final = 0.005
_PINNED_RATIO: Final = 8
"""Free memory that grows by at most this ratio of a row in use is held apart by the blocks of that row. An autograd
graph that leaks has 1.6 (glibc cannot fit an aligned tensor into a hole of its own size), a program that fragments
malloc on purpose 30 or more."""
_STEADY: Final = 0.25
"""Each part grows by at least this share of the mean growth: a cache that has filled, or a start that took long, does
not. A guess; in `reports/monitor.md` no program that stays as large is accused."""


@dataclass(frozen=True)
class Growth:
    """How a row grows.

    Attributes:
        row: its name.
        nbytes: by how much it grew between the times below.
        since_s, until_s: clock of the samples (seconds since the epoch).
        ticks: calls of `Monitor.tick` in this time.
    """

    row: str
    nbytes: int
    since_s: float
    until_s: float
    ticks: int = 0

    @property
    def bytes_per_hour(self) -> float:
        """The rate in time."""
        return self.nbytes * 3600 / max(self.until_s - self.since_s, 1e-9)

    @property
    def bytes_per_thousand_ticks(self) -> float | None:
        """The rate in calls of `tick`; None if the program does not call it."""
        return self.nbytes * 1000 / self.ticks if self.ticks else None


def growth_of(
    row: str, times_s: Sequence[float], nbytes: Sequence[int], ticks: Sequence[int], rss_bytes: int
) -> Growth | None:
    """Return the growth of a row, or None if it does not grow.

    The first quarter of the history is left out, because a program warms up. The rest is cut into four parts; if the
    growth began late, only its later half is. A row grows if the smallest value of each part is above that of the
    previous part, and all steps are alike. Memory that is freed after each step does not raise the smallest value.
    """
    begin = len(nbytes) // 4
    for first in (begin, begin + (len(nbytes) - begin) // 2):
        if len(nbytes) - first < FEWEST_SAMPLES:
            return None
        parts = np.array_split(np.arange(first, len(nbytes)), _PARTS)
        values = np.asarray(nbytes, dtype=np.int64)
        lowest = [int(part[np.argmin(values[part])]) for part in parts]
        steps = np.diff(values[lowest])
        total = int(steps.sum())
        if (
            total >= max(_LEAST_BYTES, _LEAST_SHARE_OF_RSS * rss_bytes)
            and steps.min() >= _STEADY * steps.mean()
        ):
            since, until = lowest[0], lowest[-1]
            return Growth(row, total, times_s[since], times_s[until], ticks[until] - ticks[since])
    return None


def causes_first(found: Sequence[Growth], free_rows: frozenset[str]) -> list[Growth]:
    """Return the growing rows, fastest first; free memory comes after a row whose blocks explain it.

    Blocks that stay keep the free blocks between them from being returned or joined. So a leak can make more memory
    free than it holds, and the leak is what the user has to mend.
    """
    fastest_in_use = max((each.bytes_per_hour for each in found if each.row not in free_rows), default=0.0)

    def order(growth: Growth) -> tuple[bool, float]:
        is_result = growth.row in free_rows and growth.bytes_per_hour <= _PINNED_RATIO * fastest_in_use
        return is_result, -growth.bytes_per_hour

    return sorted(found, key=order)
