"""When each entry of the history happened: torch writes microseconds, and several entries may fall into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.memory_snapshot.fields import integer

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray

TIME: Final = "time_us"
NS_PER_US: Final = 1000
GAP_NS: Final = 2
"""The least time between two entries: a free that the history lacks comes between."""
LATEST_US: Final = 1 << 52
"""In the year 2112. Nanoseconds of a later time, and of what follows it, might not fit 64 bits."""


class Times(NamedTuple):
    """The time of every entry of every device, in nanoseconds.

    Attributes:
        of_device: per device, the time of each of its entries. No two entries of a snapshot have one time, and those
            of a device keep their order.
        are_known: whether the snapshot has times; else they are positions in the history.
        start_ns: just before the first entry.
        end_ns: the time of the last.
    """

    of_device: list[IntArray]
    are_known: bool
    start_ns: int
    end_ns: int


def times_of(traces: list[list[dict[str, Any]]]) -> Times:
    """Return the times of the entries, per device."""
    are_known = any(traces) and all(TIME in entry for trace in traces for entry in trace)
    counts = [len(trace) for trace in traces]
    if not are_known:
        ends = np.cumsum(counts)
        of_device = [
            GAP_NS * np.arange(end - count + 1, end + 1) for end, count in zip(ends, counts, strict=True)
        ]
        return Times(of_device, are_known=False, start_ns=0, end_ns=GAP_NS * sum(counts))
    written = [_in_order(trace) for trace in traces]
    every = np.concatenate(written)
    order = np.argsort(every, kind="stable")
    positions = GAP_NS * np.arange(len(every))
    unique = np.empty_like(every)
    unique[order] = np.maximum.accumulate(every[order] * NS_PER_US - positions) + positions
    of_device = np.split(unique, np.cumsum(counts)[:-1])
    return Times(of_device, are_known=True, start_ns=int(unique.min()) - GAP_NS, end_ns=int(unique.max()))


def _in_order(trace: list[dict[str, Any]]) -> IntArray:
    """Return the times of a device's entries in microseconds; a clock that goes back stands still."""
    times = np.array([min(integer(entry, TIME), LATEST_US) for entry in trace], dtype=np.int64)
    return np.maximum.accumulate(times) if len(times) else times
