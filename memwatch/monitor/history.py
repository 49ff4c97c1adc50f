"""Keep the samples of a monitor, in a bounded list and in a file that grows slowly, and find the rows that grow."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FEWEST_SAMPLES: Final = 12
"""The examined part of the history has at least this many samples. A guess: three for each of its four parts."""
FEWEST_IN_ALL: Final = FEWEST_SAMPLES * 5 // 4
"""With fewer samples, memwatch does not know whether a row grows: 15 samples have 12 after their first quarter."""
_PARTS: Final = 4  # of the examined history; each must grow. A guess
LEAST_BYTES: Final = 1 << 20
"""Smaller growth is not reported. A guess."""
_LEAST_SHARE: Final = 0.005
"""The same, as a share of RSS, or of the memory that torch has taken of the device. A guess."""
_PINNED_RATIO: Final = 8
"""If free memory grows at most this many times as fast as a row in use, that row is the cause: its blocks are between
the free blocks. The ratio is 1.6 for an autograd graph that leaks (glibc cannot fit an aligned tensor into a hole of
its own size), and 30 or more for a program that fragments malloc on purpose."""
_STEADY: Final = 0.25
"""A row grows only if each part grows at least at this share of the usual rate. A full cache does not, nor does a
program that had a long start. A guess; `reports/monitor.md` has no false alarm."""
_STEADY_AT_END: Final = 0.85
"""Free memory grows only if its last part grows at least at this share of the mean rate. The blocks that an allocator
keeps approach the most that the program ever frees at once. In four of eleven runs of programs whose threads drop
tensors, only this rule prevents a false alarm: the share was 0.32 to 0.71. It was 0.98 or more in five runs of a
program that fragments malloc."""


@dataclass(frozen=True)
class Growth:
    """The growth of a row.

    Attributes:
        row: its name.
        nbytes: the bytes by which it grew between the times below.
        since_s, until_s: the times of two samples (seconds since the epoch).
        ticks: calls of `Monitor.tick` between these times.
        device: the device that has the row; empty for a row of the process.
    """

    row: str
    nbytes: int
    since_s: float
    until_s: float
    ticks: int = 0
    device: str = ""

    @property
    def bytes_per_hour(self) -> float:
        """The growth per hour."""
        return self.nbytes * 3600 / max(self.until_s - self.since_s, 1e-9)

    @property
    def bytes_per_thousand_ticks(self) -> float | None:
        """The growth per 1,000 calls of `tick`; None if the program does not call it."""
        return self.nbytes * 1000 / self.ticks if self.ticks else None


def growth_of(
    row: str,
    times_s: Sequence[float],
    nbytes: Sequence[int],
    ticks: Sequence[int],
    whole_bytes: int,
    *,
    clock: Sequence[float] | None = None,
    device: str = "",
    is_free: bool = False,
) -> Growth | None:
    """Return the growth of a row, or None if it does not grow.

    The first quarter of the history is left out, because a program warms up. The rest is cut into four parts. If it
    does not grow, its later half is examined in the same way, because growth may begin late. A row grows if the
    smallest value rises from part to part, no part is much slower than usual (`_STEADY`), and the sum is not small.
    Memory that is freed after each step does not raise the smallest value. Free memory whose growth slows down does not
    count (`_STEADY_AT_END`).

    Args:
        row: its name.
        times_s: the time of each sample (seconds since the epoch).
        nbytes: the bytes of the row in each sample.
        ticks: calls of `Monitor.tick` before each sample.
        whole_bytes: RSS of the process at the last sample, or what torch has taken of the device.
        clock: the positions of the samples from which the rates are computed; by default their times.
        device: the device that has the row.
        is_free: whether the row is free memory that an allocator keeps.
    """
    begin = len(nbytes) // 4
    least_at_end = 0.0
    for first in (begin, begin + (len(nbytes) - begin) // 2):
        if len(nbytes) - first < FEWEST_SAMPLES:
            return None
        parts = np.array_split(np.arange(first, len(nbytes)), _PARTS)
        values = np.asarray(nbytes, dtype=np.int64)
        # take the last of equal values, because the memory of a full cache stays the same until then
        lowest = [int(part[::-1][np.argmin(values[part[::-1]])]) for part in parts]
        steps = np.diff(values[lowest])
        total = int(steps.sum())
        # Compare rates, not steps: samples are dense at first, so steady growth makes larger steps later.
        spans = np.maximum(np.diff(np.asarray(times_s if clock is None else clock)[lowest]), 1e-9)
        rates, mean_rate = steps / spans, total / spans.sum()
        usual_rate = max(mean_rate, float(np.median(rates)))  # a long end without growth makes the mean small
        if is_free and first == begin:
            least_at_end = _STEADY_AT_END * mean_rate
        if (
            total >= max(LEAST_BYTES, _LEAST_SHARE * whole_bytes)
            and rates.min() >= _STEADY * usual_rate
            and rates[-1] >= least_at_end
        ):
            since, until = lowest[0], lowest[-1]
            return Growth(row, total, times_s[since], times_s[until], ticks[until] - ticks[since], device)
    return None


def causes_first(found: Sequence[Growth], free_rows: frozenset[str]) -> list[Growth]:
    """Return the growing rows, fastest first. Free memory that another row of the same memory explains comes last.

    Blocks in use prevent malloc from joining or returning the free blocks between them. So a leak can cause more free
    memory than it holds. The user has to fix the leak.
    """
    fastest_in_use: dict[str, float] = {}  # by device
    for each in found:
        if each.row not in free_rows:
            fastest_in_use[each.device] = max(each.bytes_per_hour, fastest_in_use.get(each.device, 0.0))

    def order(growth: Growth) -> tuple[bool, float]:
        most_of_result = _PINNED_RATIO * fastest_in_use.get(growth.device, 0.0)
        is_result = growth.row in free_rows and growth.bytes_per_hour <= most_of_result
        return is_result, -growth.bytes_per_hour

    return sorted(found, key=order)


MOST_SAMPLES: Final = 512
"""The most samples in memory. A guess."""
_BYTES_PER_S: Final = 250.0
"""The file grows by at most 0.9 MB an hour, as the documentation of `monitor` promises (1 MB)."""
_BURST_BYTES: Final = 20_000
"""The most bytes at once. A longer line is never written. A guess: a line has a few hundred bytes."""
_RETRY_S: Final = 60.0  # after the disk refused a line. A guess


@dataclass(frozen=True)
class Sample:
    """The rows of the process at one time.

    Attributes:
        time_s: seconds since the epoch.
        ticks: calls of `Monitor.tick` so far.
        rss_bytes, pss_bytes, uss_bytes: RSS, PSS and USS of the process.
        coverage: share of RSS in rows that name a cause.
        rows: bytes by row.
        children: USS of its child processes and their descendants, by pid.
        is_asked: whether the program asked for the sample. If not, the monitor's thread took it.
        devices: bytes by row of the devices that the process uses, such as `cuda:0 tensors`.
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
    devices: Mapping[str, int] = field(default_factory=dict)


def clock_of(samples: Sequence[Sample]) -> list[float]:
    """Return the positions of the samples from which the rates of growth are computed: their times or their numbers.

    If the program asked for most samples, it did so after equal pieces of its work. Then their numbers are the better
    clock, because the time between them contains memwatch's own searches.
    """
    if 2 * sum(sample.is_asked for sample in samples) > len(samples):
        return [float(at) for at in range(len(samples))]
    return [sample.time_s for sample in samples]


class History:
    """Samples of the whole run.

    When there are too many, it drops every second sample, and from then on keeps only every second new one.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._every = 1
        self._seen = 0

    def add(self, sample: Sample) -> None:
        """Keep a sample, or drop it if the history has become sparser."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every *= 2


class SampleFile:
    """A file of JSON lines. It leaves out lines that would make it grow faster than `_BYTES_PER_S`.

    Args:
        path: the file; lines are appended.
        note: called with a sentence whenever the disk refuses a line. The next attempt follows after `_RETRY_S`.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._path, self._note = path, note
        self._allowed_bytes = float(_BURST_BYTES)
        self._last_s = time.monotonic()
        self._not_before_s = 0.0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record. If the disk is full, the record is lost, and no half line stays behind."""
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
