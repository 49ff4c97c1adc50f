"""The events of the page: a curve of live bytes, and every allocation and free for a user who zooms or clicks.

The curve has the live bytes by category in bins. Each bin shows the instant of its maximum.

Storages are numbered by birth; storages that were alive at entry come first. Each event is then one small number: 0 is
the birth of the next storage. k is the death of the storage born k births earlier. -1 is a change of bytes without a
known storage. An event's size is written only if it differs from its storage's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypedDict

import numpy as np
import pandas as pd

from memwatch.kinds.roles import CATEGORIES
from memwatch.report.page.columns import Block, Words, pack_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.reading import DeviceReading

BINS: Final = 2000
"""More than the pixels of a wide screen, and few enough to paint at once. A guess."""
_ROWS_AT_ONCE: Final = 1 << 20
"""Rows that are read at a time. A guess."""
_STRIPS: Final = 200
"""Parts of the width of the chart, by which two axes are compared. A guess."""
_MOST_BYTES_RATIO: Final = 0.9
"""The axis is better that needs more strips for this share of the moved bytes. A guess."""
SITE_COLUMNS: Final = (
    "category",
    "rule",
    "name",
    "tensor",
    "module",
    "op_name",
    "line",
    "own_line",
    "origin",
    "device",
    "stack",
)
"""Columns with values that many storages share; each distinct combination is written once."""
_OF_LIVES: Final = ("counted", "birth_event", "death_event")
_OF_STORAGES: Final = (*SITE_COLUMNS, *_OF_LIVES, "nbytes", "op", "first_use_op", "last_use_op")
_OF_EVENTS: Final = ("time_ns", "op", "storage", "delta_bytes", "live_bytes")
TICKS_PER_EVENT: Final = 16
"""Times are rounded to a sixteenth of the mean distance between events. Finer times would cost bytes and could not be
seen. A guess."""
DETAIL_BYTES: Final = 4_000_000
"""Bytes of packed text. This keeps the page of a million events under 5 MB, however irregular they are."""
MOST_STORAGES: Final = 1_500_000
KEPT_STORAGES: Final = 300_000
"""Of more storages than the first, about so many are packed: to pack them all takes gigabytes, to leave most out. A
guess."""
MOST_BINS: Final = 2**18
FEWEST_BINS: Final = 64
"""The most and the fewest parts of the time in which storages are thinned out. A guess."""


def clearer_axis(time_ns: NDArray[np.int64], live_bytes: NDArray[np.int64]) -> Literal["time", "events"]:
    """Return the axis on which the bytes of allocations and frees are spread over more of the width.

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
    """Return the smallest number of strips of an axis that have `_MOST_BYTES_RATIO` of the moved bytes."""
    if not len(places):
        return 0
    places = np.maximum(places, 0)  # a damaged capture has events before its first
    strips = places * (_STRIPS - 1) // max(int(places[-1]), 1)
    largest_first = np.sort(np.bincount(strips, weights=moved, minlength=_STRIPS))[::-1].cumsum()
    return int(np.searchsorted(largest_first, _MOST_BYTES_RATIO * largest_first[-1])) + 1


def peak_keeping_events(
    places: NDArray[np.int64], live_bytes: NDArray[np.int64], bins: int
) -> NDArray[np.int64]:
    """Return the events to draw: the first with most live bytes in each of `bins` equal parts of an axis, and the ends.

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


def baseline_by_category(reading: DeviceReading) -> dict[str, int]:
    """Return the bytes at entry by category; bytes of no known storage are `unknown`."""
    storages = reading.part("storages", ["counted", "birth_event", "category", "nbytes"], coded=True)
    entered = storages[storages["counted"] & (storages["birth_event"] < 0)]
    sums = entered.groupby("category", observed=True)["nbytes"].sum()
    known = {name: int(sums.get(name, 0)) for name in CATEGORIES}
    known["unknown"] += reading.baseline_bytes - sum(known.values())
    return known


def live_by_category(reading: DeviceReading, events: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
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


class Detail(TypedDict):
    """Blocks that the page decodes when a user first zooms in."""

    tick_ns: int
    sites: Block
    storages: Block
    events: Block
    other_baseline_bytes: int
    """Bytes at entry that belong to no known storage."""

    left_out: int
    """How many storages were left out as too short-lived, to keep the page small."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """Storages in order of birth, and the storage of each event in that order (-1 for none)."""

    storages: pd.DataFrame
    entered: int
    """How many were alive at entry; they come first."""

    of_event: NDArray[np.int64]
    is_birth: NDArray[np.bool_]


def number_storages(timeline: pd.DataFrame, storages: pd.DataFrame) -> Numbering:
    """Return the counted storages in the order of their births in the timeline."""
    counted = storages[storages["counted"]]
    entered = counted.index[counted["birth_event"] < 0]
    touched = timeline["storage"].to_numpy()[1:]
    order = pd.Index(touched[touched >= 0]).unique()
    born = order[order.isin(counted.index) & ~order.isin(entered)]
    ordered = entered.append(born)
    of_event = ordered.get_indexer(touched)
    # a storage's first event is its birth; storages that entered alive have none
    is_birth = np.zeros(len(touched), dtype=bool)
    known = np.flatnonzero(of_event >= len(entered))
    _, first = np.unique(of_event[known], return_index=True)
    is_birth[known[first]] = True
    return Numbering(counted.loc[ordered], len(entered), of_event, is_birth)


def pack_detail(reading: DeviceReading, words: Words, most_bytes: int = DETAIL_BYTES) -> Detail:
    """Return all events and storages, or as many of them as fit into `most_bytes` of packed text."""
    at_entry, lives = reading.baseline_bytes, reading.part("storages", _OF_LIVES)
    # rows of the timeline fit 32 bits, which saves memory
    lives = lives.astype({"birth_event": np.int32, "death_event": np.int32})
    counted = int(lives["counted"].sum())
    kept = thin_rows(reading, lives, KEPT_STORAGES) if counted > MOST_STORAGES else None
    del lives
    timeline, storages = _chosen(reading, kept)
    detail = _pack(timeline, storages, at_entry, words)
    rows = detail["storages"]["rows"] + 1
    while (size := _packed_bytes(detail)) > most_bytes and detail["storages"]["rows"] < rows:
        rows = detail["storages"]["rows"]
        # the rest is a little less regular than the whole and packs a little worse, hence 0.85
        most_storages = int(0.85 * rows * most_bytes / size)
        detail = _pack(*thin(timeline, storages, most_storages), at_entry, words)
    detail["left_out"] = counted - detail["storages"]["rows"]
    return detail


def _chosen(
    reading: DeviceReading, kept: tuple[NDArray[np.int64], NDArray[np.int64]] | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return timeline and storages, or some rows of both."""
    events, storages = (None, None) if kept is None else map(pd.Index, kept)
    return reading.part("timeline", _OF_EVENTS, events), reading.part("storages", _OF_STORAGES, storages)


def _pack(timeline: pd.DataFrame, storages: pd.DataFrame, baseline_bytes: int, words: Words) -> Detail:
    numbering = number_storages(timeline, storages)
    site, sites = distinct_rows(numbering.storages[list(SITE_COLUMNS)])
    nbytes = numbering.storages["nbytes"].to_numpy()
    times_ns = timeline["time_ns"].to_numpy()
    tick_ns = max(1, int(np.ptp(times_ns)) // (TICKS_PER_EVENT * len(times_ns)))
    return Detail(
        tick_ns=tick_ns,
        sites=pack_frame(sites, words),
        storages=pack_frame(_storage_columns(numbering.storages, site), words, delta=("id", "op")),
        events=pack_frame(
            _event_columns(timeline, numbering, nbytes, tick_ns), words, delta=("row", "tick", "op")
        ),
        other_baseline_bytes=baseline_bytes - int(nbytes[: numbering.entered].sum()),
        left_out=0,
    )


def _packed_bytes(detail: Detail) -> int:
    blocks = (detail["sites"], detail["storages"], detail["events"])
    return sum(len(column["data"]) for block in blocks for column in block["columns"].values())


def distinct_rows(frame: pd.DataFrame) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Return the number of each row's combination of values, and the combinations in order of appearance."""
    group = frame.groupby(list(frame.columns), sort=False, dropna=False).ngroup().to_numpy(dtype=np.int64)
    _, first = np.unique(group, return_index=True)
    return group, frame.iloc[first].reset_index(drop=True)


def _storage_columns(storages: pd.DataFrame, site: NDArray[np.int64]) -> pd.DataFrame:
    same_site = pd.Series(storages["nbytes"].to_numpy()).groupby(site)
    op, first, last = (storages[name].to_numpy() for name in ("op", "first_use_op", "last_use_op"))
    columns: dict[str, NDArray[np.int64]] = {
        "id": storages.index.to_numpy(),
        "site": site,
        # the difference to the storage before it at the same site: mostly 0, because of loops, so it packs well
        "grown_bytes": same_site.diff().fillna(same_site.transform("first")).to_numpy(dtype=np.int64),
        "op": op,
        "first_use": np.where(first >= 0, first - op, -1),
        "last_use": np.where(last >= 0, last - np.maximum(first, 0), -1),
    }
    frame: pd.DataFrame = pd.DataFrame(columns)
    return frame


def _event_columns(
    timeline: pd.DataFrame, numbering: Numbering, nbytes: NDArray[np.int64], tick_ns: int
) -> pd.DataFrame:
    times_ns = timeline["time_ns"].to_numpy()
    born_before = numbering.entered + np.cumsum(numbering.is_birth) - numbering.is_birth
    known = numbering.of_event >= 0
    size = np.where(known, np.append(nbytes, 0)[numbering.of_event], 0)
    columns: dict[str, NDArray[np.int64]] = {
        "row": np.asarray(timeline.index[1:]),
        "tick": (times_ns[1:] - times_ns[:1]) // tick_ns,
        "who": np.where(known, born_before - numbering.of_event, -1),
        "beyond_bytes": timeline["delta_bytes"].to_numpy()[1:] - np.where(numbering.is_birth, size, -size),
        "op": timeline["op"].to_numpy()[1:],
    }
    frame: pd.DataFrame = pd.DataFrame(columns)
    return frame


def thin(
    timeline: pd.DataFrame, storages: pd.DataFrame, most_storages: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows about storages that are alive at a maximum of the curve.

    The time is divided into equal parts, each with one maximum. The number of parts is halved until at most
    `most_storages` storages stay.

    Args:
        timeline: the derived table.
        storages: the derived table.
        most_storages: how many storages may stay. More stay if more are alive at the `FEWEST_BINS` maxima.

    Returns:
        The rows of both tables that stay, unchanged.
    """
    alive = _kept(timeline, storages, most_storages)
    kept = storages[alive]
    of_kept = timeline["storage"].isin(kept.index) | (timeline["storage"] < 0)
    return timeline[of_kept], kept


def thin_rows(
    reading: DeviceReading, lives: pd.DataFrame, most_storages: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the events and storages that `thin` would keep, without making the tables.

    Args:
        reading: the profile.
        lives: when each storage was born and died, and whether it counts.
        most_storages: how many storages may stay.
    """
    alive = _kept(reading.part("timeline", ("time_ns", "live_bytes")), lives, most_storages)
    storage = reading.part("timeline", ("storage",))["storage"].to_numpy()
    of_kept = np.append(alive, True)[storage]  # -1 reads the last entry, so events without a storage stay
    return np.flatnonzero(of_kept), np.flatnonzero(alive)


def _kept(timeline: pd.DataFrame, storages: pd.DataFrame, most_storages: int) -> NDArray[np.bool_]:
    """Return for each storage whether `thin` keeps it."""
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
