"""The recorder's clock: the processor's counter, with which torch's own profiler stamps allocations."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from memwatch._torch.profiler import TickConverter, ticks
from memwatch.capture.columns import IntArray, as_rows
from memwatch.capture.schema import RECORDED_BY_NAME

__all__ = ["Clock", "ticks"]

_CALIBRATION_S = 0.01  # how long the ticks are compared with nanoseconds; a guess


class Clock:
    """Turn ticks of the time stamp counter into unix nanoseconds, by one straight line for the process."""

    _line: tuple[int, int, float] | None = None

    def __init__(self) -> None:
        if Clock._line is None:
            Clock._line = self._calibrate()
        self._tick0, self._unix0_ns, self.ns_per_tick = Clock._line

    @staticmethod
    def _calibrate() -> tuple[int, int, float]:
        converter = TickConverter()
        first = ticks()
        time.sleep(_CALIBRATION_S)
        last = ticks()
        first_ns, last_ns = converter.to_unix_ns(first), converter.to_unix_ns(last)
        return first, first_ns, (last_ns - first_ns) / (last - first)

    def to_ns(self, counts: Any) -> Any:
        """Convert ticks (an int or an integer array) to unix nanoseconds."""
        offset = (counts - self._tick0) * self.ns_per_tick
        if isinstance(offset, np.ndarray):
            return self._unix0_ns + offset.astype(np.int64)
        return self._unix0_ns + int(offset)

    def rows_in_ns(self, name: str, flat: list[int]) -> IntArray:
        """Return the rows of a recorded table as an array. Columns ending in `_ns` hold ticks, which are converted."""
        names = RECORDED_BY_NAME[name].names
        rows = as_rows(flat, len(names))
        converted = {
            index: self.to_ns(rows[:, index]) for index, column in enumerate(names) if column.endswith("_ns")
        }
        for (
            index,
            times_ns,
        ) in converted.items():  # last: if memory runs out before, all columns still hold ticks
            rows[:, index] = times_ns
        return rows

    def duration_ns(self, counts: int) -> int:
        """Convert a difference of ticks to nanoseconds."""
        return int(counts * self.ns_per_tick)
