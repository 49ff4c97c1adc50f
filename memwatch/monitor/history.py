"""The samples of a monitor: a bounded list in memory, a file that grows slowly, and which rows grow."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FEWEST_SAMPLES: Final = 12
"""Samples after the first quarter of the history."""
FEWEST_IN_ALL: Final = FEWEST_SAMPLES * 5 // 4
"""With fewer samples, no row is known to grow or to stay: 15 of them have 12 after their first quarter."""
_PARTS: Final = 4
LEAST_BYTES: Final = 1 << 20
_LEAST_SHARE_OF_RSS: Final = 0.005
_PINNED_RATIO: Final = 8
"""Free memory that grows by at most this ratio of a row in use is held apart by the blocks of that row. An autograd
graph that leaks has 1.6 (glibc cannot fit an aligned tensor into a hole of its own size), a program that fragments
malloc on purpose 30 or more."""
_STEADY: Final = 0.25
"""Each part grows at least at this share of the mean rate: a cache that has filled, or a start that took long, does
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
    row: str,
    times_s: Sequence[float],
    nbytes: Sequence[int],
    ticks: Sequence[int],
    rss_bytes: int,
    *,
    clock: Sequence[float] | None = None,
) -> Growth | None:
    """Return the growth of a row, or None if it does not grow.

    The first quarter of the history is left out, because a program warms up. The rest is cut into four parts; if the
    growth began late, only its later half is. A row grows if the smallest value of each part is above that of the
    previous part, and all rates are alike. Memory that is freed after each step does not raise the smallest value.

    Args:
        row: its name.
        times_s: clock of each sample.
        nbytes: of the row.
        ticks: calls of `Monitor.tick`.
        rss_bytes: of the process at the last sample.
        clock: positions of the samples for the rates; by default their times.
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
        # rates, because the samples are dense at first: the same growth makes larger steps between later ones
        spans = np.maximum(np.diff(np.asarray(times_s if clock is None else clock)[lowest]), 1e-9)
        if (
            total >= max(LEAST_BYTES, _LEAST_SHARE_OF_RSS * rss_bytes)
            and (steps / spans).min() >= _STEADY * total / spans.sum()
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


MOST_SAMPLES: Final = 512
_BYTES_PER_S: Final = 250.0
"""0.9 MB an hour."""
_BURST_BYTES: Final = 20_000
_RETRY_S: Final = 60.0  # after the disk refused a line


@dataclass(frozen=True)
class Sample:
    """The rows of the process at one time.

    Attributes:
        time_s: seconds since the epoch.
        ticks: calls of `Monitor.tick` so far.
        rss_bytes, pss_bytes, uss_bytes: of the process.
        coverage: share of RSS in rows that name a cause.
        rows: bytes by row.
        children: USS of the processes that it started, by pid.
        is_asked: whether the program asked for the sample.
    """

    time_s: float
    ticks: int
    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    coverage: float
    rows: Mapping[str, int]
    children: Mapping[int, int]
    is_asked: bool = False


def clock_of(samples: Sequence[Sample]) -> list[float]:
    """Return the positions of the samples at which growth is measured.

    They are the times. But if the program asked for most samples, it took them after equal pieces of its own work,
    and the time between them is also that of memwatch's searches.
    """
    if 2 * sum(sample.is_asked for sample in samples) > len(samples):
        return [float(at) for at in range(len(samples))]
    return [sample.time_s for sample in samples]


class History:
    """Samples of the whole run: when there are too many, every second one is dropped, and only every second is kept."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._every = 1
        self._seen = 0

    def add(self, sample: Sample) -> None:
        """Keep a sample, or drop it where others of its time are enough."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every *= 2


class SampleFile:
    """A file of JSON lines. A line that would make it grow faster than 1 MB an hour is left out.

    Args:
        path: the file; lines are appended.
        note: called once with a sentence if the disk refuses a line.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._path, self._note = path, note
        self._allowed_bytes = float(_BURST_BYTES)
        self._last_s = time.monotonic()
        self._not_before_s = 0.0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record. A disk that is full loses it, and no half line stays behind."""
        now_s = time.monotonic()
        self._allowed_bytes = min(
            self._allowed_bytes + (now_s - self._last_s) * _BYTES_PER_S, float(_BURST_BYTES)
        )
        self._last_s = now_s
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        if len(line) > self._allowed_bytes or now_s < self._not_before_s:
            return
        self._allowed_bytes -= len(line)
        size: int | None = None
        try:
            with open(self._path, "ab", buffering=0) as file:
                size = file.tell()
                if file.write(line) != len(line):
                    raise OSError("the disk is full")
        except OSError as error:
            self._not_before_s = now_s + _RETRY_S
            if size is not None:
                with contextlib.suppress(OSError):
                    os.truncate(self._path, size)
            self._note(f"{self._path} could not be written: {error}; samples are kept in memory")
