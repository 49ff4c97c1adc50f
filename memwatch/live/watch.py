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
from memwatch.sizes import format_bytes, format_duration
from memwatch.words.places import own_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memwatch.analysis.live_now import Iteration

LEAST_S: Final = 1.0
"""Least seconds between two readings, because the program flushes every second."""
SHARE_RATIO: Final = 0.01
"""Largest share of the machine's processor time for the view. A guess."""
_NICE: Final = 10
"""The niceness that the viewer adds, so that the program runs first. A guess."""


class Pace:
    """Compute how long to wait before the next reading, so that the view keeps within its share of processor time.

    The time to start the view counts too. The view pays it back out of half of its share, so that the screen does not
    freeze at first. Once it is paid back, the view has used no more than its share in total.

    Args:
        processors: the number of processors. By default those that this process may use.
    """

    def __init__(self, processors: int | None = None) -> None:
        self._share_ratio = SHARE_RATIO * (processors or len(os.sched_getaffinity(0)))
        self._start_s: tuple[float, float] | None = None

    def wait_s(self, reading_cpu_s: float) -> float:
        """Return the seconds to wait before the next reading.

        Args:
            reading_cpu_s: processor time of the last reading. The next one may take twice as long, because the
                recording is longer.
        """
        return max(LEAST_S, self.owed_s(reading_cpu_s))

    def owed_s(self, reading_cpu_s: float) -> float:
        """Return the seconds until the next reading is within the share.

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


def lower_priority() -> None:
    """Lower the priority of this process, so that the program runs first if processors are scarce."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)


_CLOCKS_DIFFER_S: Final = 2.0  # by which two readings of the start of one process may differ; a guess
_LONG_S: Final = 30.0
"""Seconds without a flush after which a program on another host counts as silent. A guess."""


class State(Enum):
    """The state of the recording."""

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
    """Return whether the recording's process still runs. A process that began later only reuses its number."""
    try:
        process = psutil.Process(pid)
        is_older = started_s is None or process.create_time() <= started_s + _CLOCKS_DIFFER_S
        return is_older and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # the process of another user: it exists
        return True


POINTS: Final = 200
"""Points of the curve. A column of the terminal shows one or a few of them. A guess."""
_LARGEST: Final = 40
"""Storages that are listed, the largest first. A guess."""
_ITERATIONS: Final = 20
"""Iterations that are listed, the latest ones. A guess."""


@dataclass(frozen=True)
class Storage:
    """One storage that is alive now."""

    nbytes: int
    category: str
    name: str
    place: str


@dataclass(frozen=True)
class Figures:
    """The figures of one device up to the last flush.

    Attributes:
        device: the device.
        others: other devices with recorded bytes.
        now_ns: time of the last event since the beginning of the block.
        live_bytes: live bytes after it.
        peak_bytes: most live bytes so far.
        peak_ns: when they were first reached.
        curve_bytes: the most live bytes in each of some equal stretches of time up to now.
        categories: live bytes by category, largest first.
        largest: the largest storages that are alive now, largest first.
        count: number of storages that are alive now.
        iterations: the latest iterations. The last one still runs.
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
    """Return the figures that a live view shows."""
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
    """Return the highest live bytes in each of `POINTS` stretches of time."""
    starts_ns = np.linspace(time_ns[0], time_ns[-1], POINTS, endpoint=False)
    before = np.maximum(np.searchsorted(time_ns, starts_ns, side="right") - 1, 0)
    return np.maximum.reduceat(live_bytes, before)


@dataclass(frozen=True)
class View:
    """The state and figures of a recording at one time.

    Attributes:
        name: of its file.
        state: what became of it.
        age_s: seconds since its last flush.
        read_s: seconds since figures were read. Longer than `age_s` if a flush came later.
        figures: the figures after the last flushed event. None before the first flush.
    """

    name: str
    state: State
    age_s: float
    read_s: float
    figures: Figures | None


class Watch:
    """Read a capture file repeatedly.

    Args:
        capture: the file.
        device: the device of the figures. By default the main device of the reading.
        may_be_missing: whether the file may come later.

    Attributes:
        cpu_s: processor time of the last look, in seconds.
    """

    def __init__(self, capture: Path, device: str | None = None, *, may_be_missing: bool = False) -> None:
        self._capture = capture
        self._device = device
        self._file = GrowingCapture(capture)
        self.cpu_s = 0.0
        self._may_be_missing = may_be_missing
        self._seen: tuple[int, int] | None = None
        self._read_at_s = 0.0
        self._meta: Mapping[str, Any] = {}
        self._figures: Figures | None = None

    def look(self) -> View:
        """Return the present view. Read the file if it has changed since the last time.

        Raises:
            CaptureError: the file cannot be read.
            UnknownDeviceError: the chosen device has no bytes.
        """
        begun_s = time.thread_time()
        view = self.glance()
        if view.state is State.KILLED:
            self._read()  # the recording may have ended between the last reading and the end of its process
        elif self._changed():
            self._read()
        self.cpu_s = time.thread_time() - begun_s
        return self.glance()

    def glance(self) -> View:
        """Return the view with the figures of the last reading, without reading the file."""
        age_s = max(time.time() - self._capture.stat().st_mtime, 0.0) if self._capture.exists() else 0.0
        read_s = max(time.time() - self._read_at_s, 0.0)
        return View(self._capture.name, state_of(self._meta, age_s), age_s, read_s, self._figures)

    @property
    def next_cpu_s(self) -> float:
        """Estimated processor time of a look now: that of the last one, scaled by the growth of the file."""
        if self._seen is None or not self._capture.exists():
            return self.cpu_s
        return self.cpu_s * max(1.0, self._capture.stat().st_size / max(self._seen[1], 1))

    def _changed(self) -> bool:
        """Whether the file has changed since the last reading."""
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
                raise  # otherwise the device may still get bytes
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
