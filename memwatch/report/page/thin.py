"""Leave short-lived storages out of a page that would be too large, and keep every maximum exact.

The run is cut into stretches of equal time. A storage that is alive at the highest event of no stretch is left
out. It adds nothing to live bytes at these events, so the figures and the storages shown there stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.report.page.curve import peak_keeping_events

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from memwatch.report.source import Reading

_ROWS_AT_ONCE: Final = 1 << 20
MOST_BINS: Final = 2**18
FEWEST_BINS: Final = 64


def thin(
    timeline: pd.DataFrame, storages: pd.DataFrame, most_storages: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of the storages that are alive at the maxima, of as many maxima as `most_storages` allows.

    Args:
        timeline: the derived table.
        storages: the derived table.
        most_storages: how many storages may stay; more stay only where 64 maxima alone hold more.

    Returns:
        The rows of both tables that stay, unchanged.
    """
    alive = _kept(timeline, storages, most_storages)
    kept = storages[alive]
    of_kept = timeline["storage"].isin(kept.index) | (timeline["storage"] < 0)
    return timeline[of_kept], kept


def thin_rows(
    reading: Reading, lives: pd.DataFrame, most_storages: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the events and storages that `thin` would keep, without making the tables.

    Args:
        reading: the profile.
        lives: when each storage was born and died, and whether it counts.
        most_storages: how many storages may stay.
    """
    alive = _kept(reading.part("timeline", ("time_ns", "live_bytes")), lives, most_storages)
    storage = reading.part("timeline", ("storage",))["storage"].to_numpy()
    of_kept = np.append(alive, True)[storage]  # -1 is no storage's
    return np.flatnonzero(of_kept), np.flatnonzero(alive)


def _kept(timeline: pd.DataFrame, storages: pd.DataFrame, most_storages: int) -> NDArray[np.bool_]:
    """Return for each storage whether it is alive at the maxima, of as many as the number of storages allows."""
    time_ns, live_bytes = timeline["time_ns"].to_numpy(), timeline["live_bytes"].to_numpy()
    bins = MOST_BINS
    while True:
        alive = _alive_at(peak_keeping_events(time_ns, live_bytes, bins), storages, len(timeline))
        if alive.sum() <= most_storages or bins <= FEWEST_BINS:
            return alive
        bins //= 2


def _alive_at(events: NDArray[np.int64], storages: pd.DataFrame, count: int) -> NDArray[np.bool_]:
    """Return for each storage whether it is alive after one of these events (sorted rows of the timeline)."""
    births, deaths = storages["birth_event"].to_numpy(), storages["death_event"].to_numpy()
    alive = storages["counted"].to_numpy(dtype=bool, copy=True)
    for start in range(0, len(alive), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        death = deaths[rows]
        before_birth = np.searchsorted(events, births[rows])
        alive[rows] &= before_birth < np.searchsorted(events, np.where(death < 0, count, death))
    return alive
