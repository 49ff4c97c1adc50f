"""The curve that the page draws first: live bytes by category in bins, each bin at its maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from memwatch.capture.schema import CATEGORIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.report.source import Reading

BINS: Final = 2000
"""More than the pixels of a wide screen, and few enough to paint at once."""


def peak_keeping_events(
    time_ns: NDArray[np.int64], live_bytes: NDArray[np.int64], bins: int
) -> NDArray[np.int64]:
    """Return the events to draw: the first highest of each of `bins` equal stretches of time, and both ends.

    Args:
        time_ns: times of the events in order, nanoseconds.
        live_bytes: live bytes after each.
        bins: how many stretches.

    Returns:
        Rows in order; all of them where there are at most `bins`. The overall maximum is always among them.
    """
    count = len(time_ns)
    if count <= bins:
        return np.arange(count)
    span_ns = max(int(time_ns[-1] - time_ns[0]), 1)
    begins_ns = time_ns[0] + np.ceil(np.arange(bins) * (span_ns / bins)).astype(np.int64)
    starts = np.unique(np.minimum(np.searchsorted(time_ns, begins_ns), count - 1))
    ends = np.append(starts[1:], count)
    highest = [
        start + int(live_bytes[start:end].argmax())
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.unique([0, *highest, count - 1])


def baseline_by_category(reading: Reading) -> dict[str, int]:
    """Return the bytes at entry by category; bytes of no known storage are `unknown`."""
    storages = reading.part("storages", ["counted", "birth_event", "category", "nbytes"], coded=True)
    entered = storages[storages["counted"] & (storages["birth_event"] < 0)]
    sums = entered.groupby("category", observed=True)["nbytes"].sum()
    known = {name: int(sums.get(name, 0)) for name in CATEGORIES}
    known["unknown"] += reading.baseline_bytes - sum(known.values())
    return known


def live_by_category(reading: Reading, events: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return live bytes of each category after each of these events (rows of the timeline)."""
    category = event_categories(
        reading.part("timeline", ["storage"]), reading.part("storages", ["category"], coded=True)
    )
    live_bytes = reading.part("timeline", ["live_bytes"])["live_bytes"].to_numpy()
    delta = np.zeros(len(live_bytes), dtype=np.int64)  # row 0 is the entry: its bytes are the baseline
    np.subtract(live_bytes[1:], live_bytes[:-1], out=delta[1:])
    base = baseline_by_category(reading)
    starts = np.append(0, events[:-1] + 1) if len(events) else events
    return {
        name: base[name] + np.cumsum(np.add.reduceat(np.where(category == code, delta, 0), starts))
        for code, name in enumerate(CATEGORIES)
    }


def event_categories(timeline: pd.DataFrame, storages: pd.DataFrame) -> NDArray[np.int8]:
    """Return the index into CATEGORIES of each event's storage; that of `unknown` where there is none."""
    of_storage = pd.Categorical(storages["category"], categories=CATEGORIES).codes
    unknown = np.int8(CATEGORIES.index("unknown"))
    of_storage = np.append(np.where(of_storage < 0, unknown, of_storage), unknown)
    storage = timeline["storage"].to_numpy()
    is_by_row = storages.index.equals(pd.RangeIndex(len(storages)))
    return of_storage[storage if is_by_row else storages.index.get_indexer(pd.Index(storage))]
