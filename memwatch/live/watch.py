"""Follow a capture while it is written: when to read it, what state it is in, and the figures of the last reading."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil

from memwatch.analysis import UnknownDeviceError
from memwatch.capture.file import GrowingCapture
from memwatch.reading import Reading, latest_iterations, live_now
from memwatch.report.meta import format_duration
from memwatch.sizes import format_bytes
from memwatch.words.places import own_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memwatch.analysis.latest_iterations import Iteration

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


_CLOCKS_DIFFER_S: Final = 2.0
_LONG_S: Final = 30.0
"""A program that runs flushes every second; one of another host that has not for so long is called silent."""


class State(Enum):
    """What became of the recording."""

    WAITING = "waiting for the recording to begin"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed: its process is gone, and the recording has no end"
    SILENT = "silent: its process, on another host, cannot be seen from here"

    @property
    def is_last(self) -> bool:
        """Whether nothing more will be written."""
        return self in (State.ENDED, State.KILLED)


def state_of(meta: Mapping[str, Any], age_s: float) -> State:
    """Return the state of a recording.

    Args:
        meta: the metadata of its capture.
        age_s: seconds since its last flush.
    """
    if not meta:
        return State.WAITING
    if meta.get("complete", True):
        return State.ENDED
    if meta.get("host") != socket.gethostname():
        return State.SILENT if age_s > _LONG_S else State.RUNNING
    return State.RUNNING if _is_alive(int(meta.get("pid", 0)), meta.get("started_s")) else State.KILLED


def _is_alive(pid: int, started_s: float | None) -> bool:
    """Return whether a process runs that is older than its recording: the number may be another's by now."""
    try:
        process = psutil.Process(pid)
        is_older = started_s is None or process.create_time() <= started_s + _CLOCKS_DIFFER_S
        return is_older and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # another user's: it is there
        return True


POINTS: Final = 200
"""Stretches of equal time in the curve: a column of the terminal shows one or a few."""
_LARGEST: Final = 40
_ITERATIONS: Final = 20


@dataclass(frozen=True)
class Storage:
    """One storage that is alive now."""

    nbytes: int
    category: str
    name: str
    place: str


@dataclass(frozen=True)
class Figures:
    """What was recorded up to the last flush, of one device.

    Attributes:
        device: the device.
        others: further devices that have bytes.
        now_ns: when the last event was, since the block was entered.
        live_bytes: what is alive after it.
        peak_bytes: most live bytes so far.
        peak_ns: when they were first reached.
        curve_bytes: the most live bytes in each of some equal stretches of time up to now.
        categories: what is alive now by category, largest first.
        largest: the largest storages that are alive now, largest first.
        count: how many are alive now.
        iterations: the latest iterations, the last of which still runs.
    """

    device: str
    others: Sequence[str]
    now_ns: int
    live_bytes: int
    peak_bytes: int
    peak_ns: int
    curve_bytes: Sequence[int]
    categories: Sequence[tuple[str, int]]
    largest: Sequence[Storage]
    count: int
    iterations: Sequence[Iteration]


def figures_of(reading: Reading) -> Figures:
    """Return what a live view shows of a reading."""
    now, device = live_now(reading, _LARGEST), reading.device
    time_ns, live_bytes = now.time_ns, now.live_bytes
    return Figures(
        device=device,
        others=[name for name in reading.devices if name != device],
        now_ns=int(time_ns[-1]),
        live_bytes=int(live_bytes[-1]),
        peak_bytes=reading.peak_bytes,
        peak_ns=int(time_ns[live_bytes.argmax()]),
        curve_bytes=_highest(time_ns, live_bytes).tolist(),
        categories=now.categories,
        largest=[
            Storage(each.nbytes, each.category, each.name, own_place(each.line, each.own_line))
            for each in now.largest
        ],
        count=now.storages,
        iterations=latest_iterations(reading, _ITERATIONS),
    )


def _highest(time_ns: np.ndarray, live_bytes: np.ndarray) -> np.ndarray:
    """Return the most live bytes in each of `POINTS` stretches; one without an event has what was live at its start."""
    starts_ns = np.linspace(time_ns[0], time_ns[-1], POINTS, endpoint=False)
    before = np.maximum(np.searchsorted(time_ns, starts_ns, side="right") - 1, 0)
    return np.maximum.reduceat(live_bytes, before)


@dataclass(frozen=True)
class View:
    """What is known of a recording at one time.

    Attributes:
        name: of its file.
        state: what became of it.
        age_s: seconds since its last flush.
        read_s: seconds since figures were read; longer than `age_s` where flushes came after them.
        figures: what the last event left that was flushed by then; None before the first flush.
    """

    name: str
    state: State
    age_s: float
    read_s: float
    figures: Figures | None


class Watch:
    """Look at a capture file again and again.

    Args:
        capture: the file.
        device: the device that figures are about; by default the main one of the reading.
        may_be_missing: whether the file may come later.

    Attributes:
        cpu_s: processor time that the last look took.
    """

    def __init__(self, capture: Path, device: str | None = None, *, may_be_missing: bool = False) -> None:
        self._capture, self._device = capture, device
        self._file = GrowingCapture(capture)
        self.cpu_s = 0.0
        self._may_be_missing = may_be_missing
        self._seen: tuple[int, int] | None = None
        self._read_at_s = 0.0
        self._meta: Mapping[str, Any] = {}
        self._figures: Figures | None = None

    def look(self) -> View:
        """Return the view of now; the file is read if it changed since the last time.

        Raises:
            CaptureError: the file cannot be read.
            UnknownDeviceError: the device that was asked for has no bytes.
        """
        begun_s = time.thread_time()
        view = self.glance()
        if view.state is State.KILLED:
            self._read()  # it may have ended between the last reading and the end of its process
        elif self._changed():
            self._read()
        self.cpu_s = time.thread_time() - begun_s
        return self.glance()

    def glance(self) -> View:
        """Return the view with the figures of the last reading; cheap."""
        age_s = max(time.time() - self._capture.stat().st_mtime, 0.0) if self._capture.exists() else 0.0
        read_s = max(time.time() - self._read_at_s, 0.0)
        return View(self._capture.name, state_of(self._meta, age_s), age_s, read_s, self._figures)

    @property
    def next_cpu_s(self) -> float:
        """Processor time that a look would take now: the last one's, and more by as much as the file has grown."""
        if self._seen is None or not self._capture.exists():
            return self.cpu_s
        return self.cpu_s * max(1.0, self._capture.stat().st_size / max(self._seen[1], 1))

    def _changed(self) -> bool:
        """Whether the file is not the one that was read last."""
        if self._may_be_missing and not (self._capture.exists() and self._capture.stat().st_size):
            return False
        return not self._capture.exists() or self._signature() != self._seen

    def _signature(self) -> tuple[int, int]:
        status = self._capture.stat()
        return status.st_mtime_ns, status.st_size

    def _read(self) -> None:
        seen = self._signature() if self._capture.exists() else None
        read_at_s = time.time()
        reading = Reading(self._file.read())
        self._meta = reading.meta
        try:
            self._figures = figures_of(reading if self._device is None else reading.on(self._device))
        except UnknownDeviceError:
            if self._meta.get("complete", True):
                raise  # else it may still get bytes
        self._seen = seen
        self._read_at_s = read_at_s


def line_of(view: View) -> str:
    """Return the state, what is alive now, the peak so far, and the largest categories."""
    figures = view.figures
    if figures is None:
        return view.state.value
    parts = [
        f"{format_duration(figures.now_ns)}",
        f"live {format_bytes(figures.live_bytes)}",
        f"peak {format_bytes(figures.peak_bytes)} on {figures.device}",
        *(f"{name} {format_bytes(nbytes)}" for name, nbytes in figures.categories[:3]),
        f"iteration {figures.iterations[-1].number}" if figures.iterations else "",
        view.state.value,
    ]
    return ", ".join(filter(None, parts))
