"""Watch a capture that is being written: its state, and its figures whenever it has grown."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwatch.analysis import UnknownDeviceError
from memwatch.capture.file import GrowingCapture
from memwatch.live.figures import Figures, figures_of
from memwatch.live.state import State, state_of
from memwatch.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
