"""What has to be said of a job: ranks that are missing, cut, of another version, or with another clock."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.device_names import kind_of
from memwatch.report.meta import format_duration
from memwatch.words import ranks as words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memwatch.ranks.member import Member

_VERSIONS: Final = ("memwatch", "torch", "python")
_LEAST_SHIFT_NS: Final = 10**9
_FAKE: Final = "fake"


def notes(members: Mapping[str, Member], compared: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a reader of the figures must know: (kind, sentence)."""
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
        yield words.UNFINISHED.format(names=words.listed(names))


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
            text = ", ".join(f"{version} ({words.listed(names)})" for version, names in groups.items())
            yield words.VERSIONS.format(what=what, groups=text)


def _twice(members: Mapping[str, Member]) -> Iterator[str]:
    counts = collections.Counter(member.name for member in members.values())
    for name, count in counts.items():
        if count > 1:
            yield words.TWICE.format(count=count, name=name)


def _restarted(members: Mapping[str, Member]) -> Iterator[str]:
    """Yield that captures are of ranks that torchrun started again later, because one of them failed."""
    restarts = {name: member.restart for name, member in members.items() if member.rank is not None}
    earlier = [name for name, restart in restarts.items() if restart < max(restarts.values())]
    if earlier:
        yield words.RESTARTED.format(names=words.listed(earlier))


def _other_jobs(members: Mapping[str, Member]) -> Iterator[str]:
    """Yield that captures tell of jobs of different sizes: they were not recorded in one run."""
    of_size = collections.defaultdict(list)
    for name, member in members.items():
        if member.rank is not None and isinstance(member.meta.get("world_size"), int):
            of_size[member.meta["world_size"]].append(name)
    if len(of_size) > 1:
        jobs = [
            words.JOB_OF.format(world_size=size, names=words.listed(names))
            for size, names in sorted(of_size.items())
        ]
        yield words.OTHER_JOBS.format(groups=words.listed(jobs))


def _devices(members: Mapping[str, Member], compared: Sequence[str]) -> Iterator[str]:
    main = next((kind_of(_summary(members[name])["device"]) for name in compared), "")
    others = collections.defaultdict(list)
    for name, member in members.items():
        if member.rank is not None and member.summary and name not in compared:
            others[kind_of(member.summary["device"])].append(name)
    for device, names in others.items():
        if device != main:  # else it is of a run before the last one
            yield words.OTHER_DEVICE.format(names=words.listed(names), device=device, main=main)


def _clocks(members: Mapping[str, Member], compared: Sequence[str]) -> Iterator[str]:
    """Yield which hosts' clocks differ: the same steps end at the same time, for ranks wait for each other."""
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
