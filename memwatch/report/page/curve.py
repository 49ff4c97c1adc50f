"""The curve that the page draws first: live bytes by category in bins, each bin at its maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pandas as pd

from memwatch.kinds.roles import CATEGORIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.report.source import Reading

BINS: Final = 2000
"""More than the pixels of a wide screen, and few enough to paint at once."""
_ROWS_AT_ONCE: Final = 1 << 20
_STRIPS: Final = 200
_MOST_BYTES_RATIO: Final = 0.9


def clearer_axis(time_ns: NDArray[np.int64], live_bytes: NDArray[np.int64]) -> Literal["time", "events"]:
    """Return the axis that draws allocations and frees over more of its width, by the bytes that they move.

    A long start or a slow first step leaves most of an axis of time empty. Across events, an optimizer that makes many
    small tensors takes most of the width. We measured the share of the width in which 90 % of the bytes move. It was
    58 % of time and 26 % of events for `examples/gpt.py`, 16 % and 33 % for `examples/train.py`, and 6 % and 45 % for
    a script of ten small steps after a second of imports.

    Args:
        time_ns: times of the events in order, nanoseconds.
        live_bytes: live bytes after each.
    """
    moved = np.abs(np.diff(live_bytes))
    over_time = _strips_in_use(time_ns[1:] - time_ns[:1], moved)
    return "events" if _strips_in_use(np.arange(len(moved)), moved) > over_time else "time"


def _strips_in_use(places: NDArray[np.int64], moved: NDArray[np.int64]) -> int:
    """Return how few of the equal strips of an axis have most of the bytes that move."""
    if not len(places):
        return 0
    strips = places * (_STRIPS - 1) // max(int(places[-1]), 1)
    largest_first = np.sort(np.bincount(strips, weights=moved, minlength=_STRIPS))[::-1].cumsum()
    return int(np.searchsorted(largest_first, _MOST_BYTES_RATIO * largest_first[-1])) + 1


def peak_keeping_events(
    places: NDArray[np.int64], live_bytes: NDArray[np.int64], bins: int
) -> NDArray[np.int64]:
    """Return the events to draw: the first highest of each of `bins` equal stretches of an axis, and both ends.

    Args:
        places: places of the events on the axis, in order: times in nanoseconds, or numbers of events.
        live_bytes: live bytes after each.
        bins: how many stretches.

    Returns:
        Rows in order; all of them where there are at most `bins`. The overall maximum is always among them.
    """
    count = len(places)
    if count <= bins:
        return np.arange(count)
    span = max(int(places[-1] - places[0]), 1)
    begins = places[0] + np.ceil(np.arange(bins) * (span / bins)).astype(np.int64)
    starts = np.unique(np.minimum(np.searchsorted(places, begins), count - 1))
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
    of_storage = _of_storage(reading.part("storages", ["category"], coded=True))
    live_bytes = reading.part("timeline", ["live_bytes"])["live_bytes"].to_numpy()
    base = baseline_by_category(reading)
    starts = np.append(0, events[:-1] + 1) if len(events) else events
    changes = np.zeros((len(CATEGORIES), len(starts)), dtype=np.int64)
    # row 0 is the entry: its bytes are the baseline
    for start in range(1, len(live_bytes) if len(events) else 0, _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(live_bytes)))
        storage = reading.part("timeline", ["storage"], pd.Index(rows))["storage"].to_numpy()
        stretch = np.searchsorted(starts, rows, side="right") - 1
        np.add.at(changes, (of_storage[storage], stretch), live_bytes[rows] - live_bytes[rows - 1])
    return {name: base[name] + np.cumsum(changes[code]) for code, name in enumerate(CATEGORIES)}


def _of_storage(storages: pd.DataFrame) -> NDArray[np.int8]:
    """Return the index into CATEGORIES of each row.

    Rows without a storage (-1) get the last index, which is `unknown`.
    """
    codes = pd.Categorical(storages["category"], categories=CATEGORIES).codes
    unknown = np.int8(CATEGORIES.index("unknown"))
    return np.append(np.where(codes < 0, unknown, codes), unknown)
