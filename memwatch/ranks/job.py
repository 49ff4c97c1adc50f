"""Compute the tables and figures of a job: the peaks of its processes side by side, and notes on missing captures."""

from __future__ import annotations

import collections
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from memwatch.device_names import kind_of
from memwatch.errors import CaptureError
from memwatch.kinds.roles import CATEGORIES
from memwatch.reading import Reading, load
from memwatch.sizes import format_bytes, format_duration
from memwatch.words import ranks as words
from memwatch.words.processes import listed
from memwatch.words.ranks import MORE_ON, ONLY_ON, TWIN, rank_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memwatch.analysis.findings.finding import Finding
    from memwatch.ranks.summary import Member

_OF_META: Final = ("rank", "world_size", "local_rank", "host", "pid", "parent_pid")
_OF_SUMMARY: Final = (
    "device",
    "peak_bytes",
    "baseline_bytes",
    "peak_increase_bytes",
    "communication_bytes",
    "ops",
)
_NUMBERS: Final = (*_OF_META[:3], *_OF_META[4:], *_OF_SUMMARY[1:], "steps", "peak_step")
SITE: Final = ("category", "module", "what", "line")
_MOST_NAMED: Final = 8
"""Ranks that a sentence names. A guess."""


def ranks_table(members: Mapping[str, Member]) -> pd.DataFrame:
    """Return one row per process, including processes without data. Unknown numbers are missing values."""
    rows = [_row(member) for member in members.values()]
    frame = pd.DataFrame(rows, index=pd.Index(list(members), name="process"))
    table: pd.DataFrame = frame.astype(dict.fromkeys(_NUMBERS, "Int64"))
    return table


def _row(member: Member) -> dict[str, Any]:
    meta, summary = member.meta, member.summary or {}
    at, steps = summary.get("peak_at", {}), summary.get("steps", {})
    peaks = steps.get("peak_bytes", [])
    return {
        **{name: meta.get(name) for name in _OF_META},
        **{name: summary.get(name) for name in _OF_SUMMARY},
        "steps": steps.get("count"),
        "peak_step": int(np.argmax(peaks)) * steps["per_point"] if peaks else None,
        "peak_op": at.get("name", ""),
        "peak_line": at.get("line", ""),
        "peak_module": at.get("module", ""),
        "complete": member.is_complete and member.summary is not None,
        "started_s": meta.get("started_s"),
        "path": member.path,
    }


def steps_table(members: Mapping[str, Member]) -> pd.DataFrame:
    """Return the peak of each step in each process. In a long run, a row has the highest peak of `steps` steps."""
    frames = []
    for name, member in members.items():
        points = (member.summary or {}).get("steps")
        if not points:
            continue
        first = np.arange(len(points["peak_bytes"])) * points["per_point"]
        frames.append(
            pd.DataFrame(
                {
                    "process": name,
                    "step": first,
                    "steps": np.minimum(points["per_point"], points["count"] - first),
                    "peak_bytes": points["peak_bytes"],
                }
            )
        )
    columns = ("process", "step", "steps", "peak_bytes")
    table: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    return table


def categories_table(members: Mapping[str, Member]) -> pd.DataFrame:
    """Return the bytes at each process's own peak, a column for each category."""
    sizes = {name: member.summary["category_bytes"] for name, member in members.items() if member.summary}
    frame = pd.DataFrame.from_dict(sizes, orient="index", columns=list(CATEGORIES)) if sizes else pd.DataFrame(
        columns=list(CATEGORIES)
    )  # fmt: skip
    table: pd.DataFrame = frame.fillna(0).astype("int64").rename_axis("process")
    return table


def sites_table(members: Mapping[str, Member]) -> pd.DataFrame:
    """Return the live bytes at each process's own peak, grouped by category, module, kind of object and line."""
    rows = [
        (name, *site)
        for name, member in members.items()
        if member.summary
        for site in member.summary["sites"]
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["process", *SITE, "nbytes", "count"])
    return table


def differences(members: Mapping[str, Member], compared: Sequence[str]) -> pd.DataFrame:
    """Return the sites with different bytes in different ranks, the largest difference first.

    A summary lists only the largest sites. If a rank does not list a site, it may have as many bytes of it as of its
    smallest listed site. A difference is left out if it may not exist for this reason.

    Args:
        members: the processes by name.
        compared: the compared processes.

    Returns:
        Columns `lowest_bytes`, `highest_bytes`, `spread_bytes`, and `where`: the ranks that have the site or, if all
        have it, the ranks with the most bytes.
    """
    sites = sites_table({name: members[name] for name in compared})
    names = ["lowest_bytes", "highest_bytes", "spread_bytes", "where"]
    if sites.empty or len(compared) < 2:
        empty: pd.DataFrame = pd.DataFrame(columns=[*SITE, *names])
        return empty
    sites = _of_one_module(sites)
    wide = sites.pivot_table(index=list(SITE), columns="process", values="nbytes", aggfunc="sum", sort=False)
    wide = wide.reindex(columns=list(compared))
    unlisted = np.array([_most_unlisted(members[name]) for name in compared])
    known = wide.to_numpy(dtype="float64")
    lowest = np.where(np.isnan(known), unlisted, known).min(axis=1)
    highest = np.nanmax(known, axis=1)
    found = pd.DataFrame(
        {
            "lowest_bytes": np.nan_to_num(known).min(axis=1).astype("int64"),
            "highest_bytes": highest.astype("int64"),
            "where": [_where(row, compared, members) for row in known],
        },
        index=wide.index,
    )
    found.insert(2, "spread_bytes", found["highest_bytes"] - found["lowest_bytes"])
    differing = found[highest > lowest].sort_values("spread_bytes", ascending=False, kind="stable")
    table: pd.DataFrame = differing.reset_index()
    return table


def _of_one_module(sites: pd.DataFrame) -> pd.DataFrame:
    """Return the sites. A site without a module gets the module that it has in another process.

    For example, one rank may have seen a gradient bucket of DDP during the backward of a module, and another rank after
    it. The module is only filled in if no process has two sites that differ in nothing but the module.
    """
    others = [name for name in SITE if name != "module"]
    group = sites.groupby(others, sort=False)
    one_each = group["process"].transform("nunique") == group["process"].transform("size")
    seen = sites["module"].where(sites["module"] != "")
    modules = seen.groupby([sites[name] for name in others], sort=False)
    same = modules.transform("first").where(one_each & (modules.transform("nunique") == 1))
    table: pd.DataFrame = sites.assign(module=seen.fillna(same).fillna(""))
    return table


def _most_unlisted(member: Member) -> int:
    summary = member.summary or {}
    sites = summary.get("sites", [])
    return int(sites[-1][-2]) if sites and summary.get("other_sites_bytes") else 0


def _where(
    row: np.ndarray[Any, np.dtype[np.float64]], names: Sequence[str], members: Mapping[str, Member]
) -> str:
    has = [name for name, nbytes in zip(names, row, strict=True) if nbytes > 0]
    if len(has) < len(names):
        return ONLY_ON.format(names=_phrase(has, members))
    highest = row.max()
    most = [name for name, nbytes in zip(names, row, strict=True) if nbytes == highest]
    return MORE_ON.format(name=_phrase(most, members))


def _phrase(names: Sequence[str], members: Mapping[str, Member]) -> str:
    ranks = [rank for name in names if (rank := members[name].rank) is not None]
    return rank_names(ranks) if len(ranks) == len(names) else listed(names, _MOST_NAMED)


_VERSIONS: Final = ("memwatch", "torch", "python")
_LEAST_SHIFT_NS: Final = 10**9
"""Nanoseconds. A note says that the clocks of two hosts differ only if they differ by more than this. A guess."""
_FAKE: Final = "fake"


def notes(members: Mapping[str, Member], compared: Sequence[str]) -> list[tuple[str, str]]:
    """Return notes that a reader of the figures needs: (kind, sentence)."""
    found = [("missing", text) for text in _missing(members)]
    found += [("unreadable", text) for text in _unreadable(members)]
    found += [("unfinished", text) for text in _unfinished(members)]
    found += [("version", text) for text in _versions(members)]
    found += [("twice", text) for text in _twice(members)]
    found += [("restart", text) for text in _restarted(members)]
    found += [("job", text) for text in _other_jobs(members)]
    found += [("device", text) for text in _devices(members, compared)]
    return found + [("clock", text) for text in _clocks(members, compared)]


def _missing(members: Mapping[str, Member]) -> Iterator[str]:
    known = [member for member in members.values() if member.rank is not None]
    imagined = [member for member in known if member.meta.get("process_group") == _FAKE]
    for member in imagined:
        yield words.IMAGINED.format(name=member.name, world_size=member.meta.get("world_size"))
    world_size = max((member.meta.get("world_size") or 0 for member in known), default=0)
    absent = sorted(set(range(world_size)) - {member.rank for member in known})
    if absent and not imagined:
        ranks = words.rank_names(absent)
        yield words.MISSING.format(
            ranks=ranks[0].upper() + ranks[1:],
            world_size=world_size,
            them="it" if len(absent) == 1 else "them",
        )


def _unreadable(members: Mapping[str, Member]) -> Iterator[str]:
    for name, member in members.items():
        if member.problem:
            yield words.UNREADABLE.format(name=name, reason=member.problem)


def _unfinished(members: Mapping[str, Member]) -> Iterator[str]:
    names = [name for name, member in members.items() if member.summary and not member.is_complete]
    if names:
        yield words.UNFINISHED.format(names=listed(names))


def _versions(members: Mapping[str, Member]) -> Iterator[str]:
    for name, member in members.items():
        if member.format_version:
            template = words.OTHER_FORMAT if member.summary else words.OTHER_FORMAT_ALONE
            version = member.meta.get("memwatch", "?")
            yield template.format(name=name, version=version, format=member.format_version)
    for what in _VERSIONS:
        groups = collections.defaultdict(list)
        for name, member in members.items():
            if what in member.meta:
                groups[str(member.meta[what])].append(name)
        if len(groups) > 1:
            text = ", ".join(f"{version} ({listed(names)})" for version, names in groups.items())
            yield words.VERSIONS.format(what=what, groups=text)


def _twice(members: Mapping[str, Member]) -> Iterator[str]:
    counts = collections.Counter(member.name for member in members.values())
    for name, count in counts.items():
        if count > 1:
            yield words.TWICE.format(count=count, name=name)


def _restarted(members: Mapping[str, Member]) -> Iterator[str]:
    """Yield a note if torchrun started ranks again later, so that their captures are of an earlier attempt."""
    restarts = {name: member.restart for name, member in members.items() if member.rank is not None}
    earlier = [name for name, restart in restarts.items() if restart < max(restarts.values())]
    if earlier:
        yield words.RESTARTED.format(names=listed(earlier))


def _other_jobs(members: Mapping[str, Member]) -> Iterator[str]:
    """Yield a note if the captures come from jobs of different sizes, because then they are not from one run."""
    of_size = collections.defaultdict(list)
    for name, member in members.items():
        if member.rank is not None and isinstance(member.meta.get("world_size"), int):
            of_size[member.meta["world_size"]].append(name)
    if len(of_size) > 1:
        jobs = [
            words.JOB_OF.format(world_size=size, names=listed(names))
            for size, names in sorted(of_size.items())
        ]
        yield words.OTHER_JOBS.format(groups=listed(jobs))


def _devices(members: Mapping[str, Member], compared: Sequence[str]) -> Iterator[str]:
    main = next((kind_of(_summary(members[name])["device"]) for name in compared), "")
    others = collections.defaultdict(list)
    for name, member in members.items():
        if member.rank is not None and member.summary and name not in compared:
            others[kind_of(member.summary["device"])].append(name)
    for device, names in others.items():
        if device != main:  # a rank with the same device is not compared because it is of an earlier attempt
            yield words.OTHER_DEVICE.format(names=listed(names), device=device, main=main)


def _clocks(members: Mapping[str, Member], compared: Sequence[str]) -> Iterator[str]:
    """Yield a note for each host with another clock. Ranks wait for each other, so their steps end at the same time."""
    first: dict[str, Any] = {}
    for name in compared:
        first.setdefault(str(members[name].meta.get("host", "")), _summary(members[name])["steps"])
    if not first:
        return
    (base, reference), *others = first.items()
    for host, steps in others:
        if steps["count"] != reference["count"]:
            continue
        ends = np.array(steps["end_ns"]), np.array(reference["end_ns"])
        shifts = ends[0] - ends[1]
        shift_ns, spread_ns = float(np.median(shifts)), float(np.ptp(shifts))
        lasting_ns = float(np.median(np.diff(ends[1]))) if len(shifts) > 1 else 0.0
        if abs(shift_ns) > max(_LEAST_SHIFT_NS, 2 * lasting_ns, 2 * spread_ns):
            yield words.CLOCKS.format(
                host=host,
                other=base,
                shift=format_duration(abs(shift_ns)),
                way=words.AHEAD if shift_ns > 0 else words.BEHIND,
            )


def _summary(member: Member) -> dict[str, Any]:
    assert member.summary is not None
    return member.summary


class Job:
    """The tables of many processes of one job. Sizes are in bytes. The figures of a process are those at its own peak.

    Only ranks are compared, or all processes if there are no ranks. They must mainly use the same kind of device.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = _by_name(_with_parents(members))

    @cached_property
    def compared(self) -> list[str]:
        """The processes that are compared with each other."""
        known = {name: member for name, member in self._members.items() if member.summary}
        ranks = {name: member for name, member in known.items() if member.rank is not None} or known
        last = max((member.restart for member in ranks.values()), default=0)
        ranks = {name: member for name, member in ranks.items() if member.restart == last}
        kinds = {name: kind_of(member.summary["device"]) for name, member in ranks.items() if member.summary}
        if not kinds:
            return []
        main = collections.Counter(kinds.values()).most_common(1)[0][0]
        return [name for name, kind in kinds.items() if kind == main]

    @property
    def are_ranks(self) -> bool:
        """Whether the compared processes are ranks of a job, which do the same work."""
        return bool(self.compared) and all(self._members[name].rank is not None for name in self.compared)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per process: its place in the job, its peak, and where that was."""
        return ranks_table(self._members)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The peak of every step in every process."""
        return steps_table(self._members)

    @cached_property
    def categories(self) -> pd.DataFrame:
        """The bytes at the peak of each process, with a column for each category."""
        return categories_table(self._members)

    @cached_property
    def sites(self) -> pd.DataFrame:
        """The largest groups of live storages at the peak of each process, by category, module and line."""
        return sites_table(self._members)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """The sites of which some ranks have more at their peaks than others, largest difference first."""
        return differences(self._members, self.compared)

    @cached_property
    def notes(self) -> list[tuple[str, str]]:
        """Notes about the figures: missing or cut ranks, other versions, other clocks."""
        return notes(self._members, self.compared)

    @property
    def worst(self) -> str:
        """The compared process with the highest peak. Empty if no process has figures."""
        peaks = self._peak_bytes
        return max(peaks, key=lambda name: peaks[name], default="")

    @property
    def worst_path(self) -> str:
        """The capture of the worst process; empty if it was gathered, not read from a file."""
        return self._members[self.worst].path if self.worst else ""

    @cached_property
    def worst_reading(self) -> Reading | None:
        """The recording of the worst process; None if it was gathered, or if its tables cannot be read."""
        try:
            return load(self.worst_path) if self.worst_path else None
        except CaptureError:
            return None

    @property
    def findings(self) -> list[Finding]:
        """The findings of the worst process. Empty if its recording is not available."""
        return [] if self.worst_reading is None else self.worst_reading.findings

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any process that is compared."""
        return max(self._peak_bytes.values(), default=0)

    @property
    def imbalance_ratio(self) -> float:
        """The highest peak divided by the mean, minus 1: 0 if all peaks are equal, 0.5 if it is 1.5 times the mean."""
        peaks = list(self._peak_bytes.values())
        mean = float(np.mean(peaks)) if peaks else 0.0
        return max(peaks) / mean - 1 if mean else 0.0

    @property
    def devices(self) -> list[str]:
        """The kinds of devices that the figures are about."""
        return sorted(
            {kind_of(member.summary["device"]) for member in self._members.values() if member.summary}
        )

    @property
    def _peak_bytes(self) -> dict[str, int]:
        found = {}
        for name in self.compared:
            summary = self._members[name].summary
            if summary is not None:
                found[name] = int(summary["peak_bytes"])
        return found


def _with_parents(members: Sequence[Member]) -> list[Member]:
    """Return the processes. A process that a rank started gets the rank's number."""
    ranks = {(member.meta.get("host"), member.meta.get("pid")): member.rank for member in members}
    found = []
    for member in members:
        parent = ranks.get((member.meta.get("host"), member.meta.get("parent_pid")))
        is_child = parent is not None and member.rank is None
        found.append(replace(member, meta={**member.meta, "of_rank": parent}) if is_child else member)
    return found


def _by_name(members: Sequence[Member]) -> dict[str, Member]:
    """Return processes by name, ranks first and in order. Equal names get a number."""
    counts = collections.Counter(member.name for member in members)
    ordered = sorted(members, key=lambda member: (member.rank is None, member.rank or 0, member.name))
    found: dict[str, Member] = {}
    for member in ordered:
        name = member.name
        if counts[name] > 1:
            name = TWIN.format(name=name, pid=member.meta.get("pid", member.path))
        while name in found:
            name = TWIN.format(name=name, pid=member.path)
        found[name] = member
    return found


@dataclass(frozen=True, slots=True)
class Totals:
    """The peaks of a job in a few numbers, sizes in bytes.

    Attributes:
        processes: number of known processes, also of those that are not compared.
        compared: number of compared processes.
        are_ranks: whether the compared processes are ranks.
        device: the kind of device that the figures are about, such as `cuda`; empty without compared processes.
        worst: the compared process with the highest peak.
        highest_bytes: the peak of `worst`.
        lowest_bytes: the lowest peak of the compared processes.
        mean_bytes: the mean of their peaks.
        imbalance_ratio: the highest peak divided by the mean, minus 1.
    """

    processes: int
    compared: int
    are_ranks: bool
    device: str
    worst: str
    highest_bytes: int
    lowest_bytes: int
    mean_bytes: int
    imbalance_ratio: float


def totals(ranks: Job) -> Totals:
    """Return the totals of a job."""
    rows = ranks.ranks.loc[ranks.compared]
    peaks = rows["peak_bytes"]
    return Totals(
        processes=len(ranks.ranks),
        compared=len(rows),
        are_ranks=ranks.are_ranks,
        device=str(rows["device"].iloc[0]).partition(":")[0] if len(rows) else "",
        worst=ranks.worst,
        highest_bytes=ranks.peak_bytes,
        lowest_bytes=int(peaks.min()) if len(rows) else 0,
        mean_bytes=round(peaks.mean()) if len(rows) else 0,
        imbalance_ratio=ranks.imbalance_ratio,
    )


@dataclass(frozen=True, slots=True)
class CategorySpread:
    """The bytes of one category at the peaks of the compared processes.

    Attributes:
        name: the category.
        lowest_bytes: the least bytes in any process.
        mean_bytes: the mean of the processes.
        highest_bytes: the most bytes in any process.
        worst_bytes: the bytes in the process with the highest peak.
        highest_in: the processes with `highest_bytes`; empty if all processes have the same bytes.
    """

    name: str
    lowest_bytes: int
    mean_bytes: int
    highest_bytes: int
    worst_bytes: int
    highest_in: str


def category_spreads(ranks: Job) -> list[CategorySpread]:
    """Return a spread for each category that a compared process has at its peak, in the order of CATEGORIES."""
    if not ranks.compared:
        return []
    table: pd.DataFrame = ranks.categories.loc[ranks.compared]
    return [
        CategorySpread(
            name=name,
            lowest_bytes=int(sizes.min()),
            mean_bytes=round(sizes.mean()),
            highest_bytes=int(sizes.max()),
            worst_bytes=int(sizes[ranks.worst]),
            highest_in=_phrase(sizes.index[sizes == sizes.max()].tolist(), ranks._members)
            if sizes.max() > sizes.min()
            else "",
        )
        for name in CATEGORIES
        if (sizes := table[name]).max() > 0
    ]


def headline(ranks: Job) -> str:
    """Return which process has the highest peak, and what to do about it; "" without compared processes."""
    found = totals(ranks)
    if not found.compared:
        return ""
    figures = {
        "worst": found.worst,
        "highest": format_bytes(found.highest_bytes),
        "share": f"{100 * found.imbalance_ratio:.1f} %",
        "count": found.compared,
    }
    is_equal = found.lowest_bytes == found.highest_bytes and found.compared > 1
    if is_equal and not found.are_ranks:
        text = words.HEADLINE_EQUAL_PROCESSES.format(**figures)
    elif not found.are_ranks or found.compared == 1:
        text = words.HEADLINE_PROCESS.format(**figures)
    elif is_equal:
        text = words.HEADLINE_EQUAL.format(**figures) + words.TO_DO_EQUAL
    else:
        text = words.HEADLINE.format(**figures) + words.TO_DO.format(**figures)
    findings = ranks.worst_reading.findings if ranks.worst_reading is not None else []
    predicted_bytes = getattr(next(iter(findings), None), "predicted_peak_bytes", None)
    if predicted_bytes is not None and found.lowest_bytes < found.highest_bytes:
        text += words.TO_DO_FINDING.format(nbytes=format_bytes(predicted_bytes))
    return text[:1].upper() + text[1:]
