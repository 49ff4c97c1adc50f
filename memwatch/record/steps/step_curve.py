"""The curve of the steps: the most and the least live bytes of each, recorded or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.capture.packed import IntArray
    from memwatch.record.steps.live_events import Heard


class Ended(NamedTuple):
    """A step that has ended.

    Attributes:
        end_ns: when.
        recorded: whether all its ops are in the capture.
    """

    end_ns: int
    recorded: bool


class StepCurve:
    """Make the rows of the table `step_curve`."""

    def __init__(self) -> None:
        self.step = 0
        self._start_ns = 0
        self._peak_bytes: dict[int, int] = {}
        self._floor_bytes: dict[int, int] = {}

    def begin(self, start_ns: int, live_bytes: Mapping[int, int]) -> None:
        """Begin the first step with what is live on each device."""
        self._start_ns = start_ns
        self._peak_bytes, self._floor_bytes = dict(live_bytes), dict(live_bytes)

    def peak_bytes(self, device: int) -> int:
        """Return the most live bytes of a device in the step that has not ended."""
        return self._peak_bytes.get(device, 0)

    def add(
        self,
        heard: Heard,
        before_bytes: Mapping[int, int],
        now_bytes: Mapping[int, int],
        ended: Sequence[Ended],
    ) -> IntArray:
        """Return the rows of the steps that have ended.

        Args:
            heard: the events since the last call.
            before_bytes: live bytes by device before them.
            now_bytes: the same after them.
            ended: the steps that have ended since.
        """
        ends_ns = np.array([step.end_ns for step in ended], dtype=np.int64)
        starts_ns = np.append(self._start_ns, ends_ns)[: len(ended)]
        numbers, recorded = (
            self.step + np.arange(len(ended)),
            np.array([step.recorded for step in ended], int),
        )
        found = [np.zeros((0, 8), dtype=np.int64)]
        for device in now_bytes:
            peaks, floors, lasts = self._of(heard, device, before_bytes.get(device, 0), ends_ns)
            columns = (
                numbers,
                np.full(len(ended), device),
                starts_ns,
                ends_ns,
                peaks,
                floors,
                lasts,
                recorded,
            )
            found.append(np.column_stack(columns))
        if ended:
            self.step += len(ended)
            self._start_ns = ended[-1].end_ns
        rows = np.concatenate(found)
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]

    def _of(
        self, heard: Heard, device: int, before_bytes: int, ends_ns: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the most, the least and the last live bytes of each step that has ended; note those of the next."""
        here = heard.rows[:, 3] == device
        live, count = heard.live_bytes[here], len(ends_ns)
        step = np.searchsorted(ends_ns, heard.rows[here, 0], side="right")
        after = np.append(before_bytes, live)
        peaks = after[np.searchsorted(step, np.arange(count + 1), side="left")]  # what each begins with
        floors = peaks.copy()
        peaks[0] = max(peaks[0], self._peak_bytes.get(device, before_bytes))
        floors[0] = min(floors[0], self._floor_bytes.get(device, before_bytes))
        np.maximum.at(peaks, step, live)
        np.minimum.at(floors, step, live)
        self._peak_bytes[device], self._floor_bytes[device] = int(peaks[-1]), int(floors[-1])
        return peaks[:count], floors[:count], after[np.searchsorted(step, np.arange(count), side="right")]
