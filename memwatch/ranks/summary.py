"""Summarise one process in a few kilobytes of JSON. These summaries are all that memwatch reads of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.analysis import ByDevice
from memwatch.analysis.facts.categories import COMMUNICATION, for_collectives
from memwatch.analysis.facts.iterations import boundaries
from memwatch.capture import load
from memwatch.capture.file import Head, read_head
from memwatch.errors import CaptureError
from memwatch.kinds.roles import OF_TRAINING
from memwatch.words.places import own_place
from memwatch.words.ranks import CHILD, PROCESS, RANK, RESTARTED_RANK, UNKNOWN
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    import os

    from memwatch.analysis.derived_tables import DerivedTables
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

VERSION: Final = 1  # of the format of a summary
MOST_POINTS: Final = 1000
"""Points of the curve of a process. In a longer run, a point is the highest peak of several steps. A guess."""
MOST_SITES: Final = 100
"""Groups of storages at the peak in a summary, the largest ones. A guess."""
NAMED: Final = (*OF_TRAINING, *COMMUNICATION)
"""Categories with names that mean the same in all ranks. Storages of other categories are identified by op and line."""
_SITE: Final = ("category", "module", "what", "line")
_WHOLE: Final = (
    "peak_bytes", "baseline_bytes", "peak_increase_bytes", "ops", "last_ns", "communication_bytes", "other_sites_bytes",
)  # fmt: skip
_MOST: Final = 1 << 61
"""The limit for sizes and times. The sum of two of them still fits 64 bits."""
_COLUMNS: Final = ("nbytes", "category", "module", "name", "op_name", "line", "own_line")


def told_what(category: str, what: str) -> str:
    """Return the object of a site for people: its name as it is, or the short name of its op."""
    return what if category in NAMED else short_op(what)


def is_summary(found: dict[str, Any]) -> bool:
    """Return whether a dictionary of a file is a summary of this version as `summarise` makes it, in every field."""
    whole, texts = _is_whole, _are_texts
    at, steps, sites = (found.get(name) for name in ("peak_at", "steps", "sites"))
    return (
        found.get("version") == VERSION
        and isinstance(found.get("device"), str)
        and all(whole(found.get(name)) for name in _WHOLE)
        and all(_are_sizes(found.get(name)) for name in ("device_peak_bytes", "category_bytes"))
        and isinstance(at, dict)
        and texts([at.get(name) for name in ("name", "line", "module", "phase")])
        and isinstance(steps, dict)
        and whole(steps.get("count"))
        and whole(steps.get("per_point"))
        and all(
            isinstance(steps.get(name), list) and all(map(whole, steps[name]))
            for name in ("peak_bytes", "end_ns")
        )
        and len(steps["peak_bytes"]) == len(steps["end_ns"]) <= MOST_POINTS
        and isinstance(sites, list)
        and len(sites) <= MOST_SITES
        and all(
            isinstance(site, list)
            and len(site) == len(_SITE) + 2
            and texts(site[: len(_SITE)])
            and all(map(whole, site[len(_SITE) :]))
            for site in sites
        )
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _are_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_whole, value.values()))


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def summarise(capture: Capture) -> dict[str, Any]:
    """Return the summary of a capture, about its main device, as plain JSON values; sizes are in bytes."""
    by_device = ByDevice(capture)
    tables = by_device.tables()
    facts = tables.facts
    curve = facts.curve
    steps = _steps(tables)
    return {
        "version": VERSION,
        "device": facts.device,
        "device_peak_bytes": {
            name: by_device.tables(name).facts.curve.peak_bytes for name in by_device.names
        },
        "peak_bytes": curve.peak_bytes,
        "baseline_bytes": curve.baseline_bytes,
        "peak_increase_bytes": curve.peak_increase_bytes,
        "peak_at": _peak_at(tables),
        "ops": capture.rows("ops"),
        "last_ns": int(curve.time_ns[-1]) if len(curve.time_ns) else 0,
        "steps": steps,
        "communication_bytes": _most_for_collectives(facts),
        **_at_peak(tables),
    }


def _peak_at(tables: DerivedTables) -> dict[str, Any]:
    op = tables.facts.op_at_peak
    if op < 0:
        return {"op": -1, "name": "", "line": "", "module": "", "phase": ""}
    names = ("name", "module", "phase", "line", "own_line")
    row = tables.part("ops", names, np.array([op])).iloc[0]
    return {
        "op": op,
        **{name: str(row[name]) for name in names[:3]},
        "line": own_place(str(row["line"]), str(row["own_line"])),
    }


def _at_peak(tables: DerivedTables) -> dict[str, Any]:
    """Return the bytes at the peak by category, the largest sites, and the bytes outside these sites."""
    facts = tables.facts
    alive = np.flatnonzero(facts.alive_at(facts.curve.peak_event))
    rows = tables.part("storages", _COLUMNS, alive).astype({"category": "str"})
    is_named = rows["category"].isin(NAMED)
    rows["what"] = rows["name"].where(is_named, rows["op_name"].where(rows["op_name"] != "", rows["name"]))
    places = [own_place(line, own) for line, own in zip(rows["line"], rows["own_line"], strict=True)]
    rows["line"] = np.where(is_named, "", np.asarray(places, dtype=object))
    sizes = rows.groupby(list(_SITE), sort=False)["nbytes"].agg(["sum", "size"])
    sizes = sizes.sort_values("sum", ascending=False, kind="stable")
    categories = rows.groupby("category")["nbytes"].sum()
    return {
        "category_bytes": {str(name): int(nbytes) for name, nbytes in categories.items()},
        "sites": [
            [*map(str, site), int(nbytes), int(count)]
            for site, nbytes, count in sizes.head(MOST_SITES).itertuples(name=None)
        ],
        "other_sites_bytes": int(sizes["sum"].iloc[MOST_SITES:].sum()),
    }


def _most_for_collectives(facts: Facts) -> int:
    """Return the most bytes that were alive for collectives at one instant."""
    allocations = facts.allocations
    is_for_them = for_collectives(facts.capture, allocations, facts.categories.category)
    rows = np.flatnonzero(is_for_them & allocations.counted)
    size = len(facts.curve.live_bytes) + 1
    delta = np.zeros(size, dtype=np.int64)
    births, deaths = allocations.birth_event[rows], allocations.death_event[rows]
    np.add.at(delta, np.maximum(births, 0), allocations.nbytes[rows])
    np.subtract.at(delta, np.where(deaths < 0, size - 1, deaths), allocations.nbytes[rows])
    return int(np.cumsum(delta).max())


def _steps(tables: DerivedTables) -> dict[str, Any]:
    """Return the peaks of the steps: `count`, `per_point`, and for each point its peak and its end."""
    facts = tables.facts
    ends_ns = _ends_ns(tables)
    curve = facts.curve
    live = np.append(curve.live_bytes, curve.live_bytes[-1])
    after = np.searchsorted(curve.time_ns, ends_ns, side="right")
    first = np.append(0, after[:-1])
    peaks = np.maximum.reduceat(live, np.minimum(first, len(live) - 1))
    peaks = np.maximum(peaks, live[np.maximum(first - 1, 0)])  # live bytes at the start of a step
    count = len(ends_ns)
    per_point = -(-count // MOST_POINTS)
    starts = np.arange(0, count, per_point)
    lasts = np.minimum(starts + per_point, count) - 1
    return {
        "count": count,
        "per_point": per_point,
        "peak_bytes": np.maximum.reduceat(peaks, starts).tolist(),
        "end_ns": ends_ns[lasts].tolist(),
    }


def _ends_ns(tables: DerivedTables) -> IntArray:
    """Return the ends of the iterations in unix time. The last one ends with the recording."""
    facts = tables.facts
    capture = facts.capture
    last_ns = max(int(capture.meta.get("end_ns", 0)), int(facts.curve.time_ns[-1]))
    ends_ns = np.unique(boundaries(capture, facts.places).ends_ns)
    ops = capture.tables["ops"]["start_ns"]
    if len(ends_ns) and (not len(ops) or ops[-1] < ends_ns[-1]):
        return ends_ns  # no op ran after the last iteration
    return np.append(ends_ns, last_ns)


@dataclass(frozen=True)
class Member:
    """One process.

    Attributes:
        meta: the metadata of its capture. Empty if the file cannot be read.
        summary: its summary. None if there is none.
        path: the path of its capture. Empty if the summary came over the network.
        problem: the reason why there is no summary. Empty if there is one.
        format_version: the format of its capture if this memwatch cannot read it, or else 0.
    """

    meta: dict[str, Any]
    summary: dict[str, Any] | None
    path: str = ""
    problem: str = ""
    format_version: int = 0

    @property
    def rank(self) -> int | None:
        """Its rank, or None."""
        rank = self.meta.get("rank")
        return int(rank) if isinstance(rank, int) else None

    @property
    def restart(self) -> int:
        """How often its job had been started again before it."""
        restart = self.meta.get("restart", 0)
        return restart if isinstance(restart, int) else 0

    @property
    def is_complete(self) -> bool:
        """Whether its block ended."""
        return bool(self.meta.get("complete", True))

    @property
    def name(self) -> str:
        """Its name: `rank 3`, `process 4243 of rank 3`, `process 4243`."""
        pid = self.meta.get("pid")
        if self.rank is not None:
            return (RESTARTED_RANK if self.restart else RANK).format(rank=self.rank, restart=self.restart)
        if pid is None:
            return UNKNOWN.format(file=Path(self.path).name)
        if "of_rank" in self.meta:
            return CHILD.format(pid=pid, rank=self.meta["of_rank"])
        return PROCESS.format(pid=pid)


def read_member(path: str | os.PathLike[str]) -> Member:
    """Return the process of a capture file. If the file cannot be read, `problem` has the reason.

    If the file has no summary, it is computed from the tables.
    """
    try:
        head = read_head(path)
    except CaptureError as error:
        return Member({}, None, str(path), problem=str(error))
    other_format = 0 if head.is_readable else head.format_version
    if head.summary is not None and is_summary(head.summary):
        return Member(head.meta, head.summary, str(path), format_version=other_format)
    if other_format:
        return Member(head.meta, None, str(path), format_version=other_format)
    return _from_tables(path, head)


def _from_tables(path: str | os.PathLike[str], head: Head) -> Member:
    try:
        capture = load(path)
    except CaptureError as error:
        return Member(head.meta, None, str(path), problem=str(error))
    return Member(capture.meta, summarise(capture), str(path))
