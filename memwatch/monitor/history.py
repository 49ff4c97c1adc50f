"""The samples of a monitor: a bounded list in memory, and a file that grows slowly."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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
    """

    time_s: float
    ticks: int
    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    coverage: float
    rows: Mapping[str, int]
    children: Mapping[int, int]


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
