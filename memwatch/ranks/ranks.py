"""The reading of a job: what its processes had at their peaks, side by side."""

from __future__ import annotations

import collections
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.capture.errors import CaptureError
from memwatch.device_names import kind_of
from memwatch.ranks import tables
from memwatch.ranks.notes import notes
from memwatch.reading import load
from memwatch.words.ranks import TWIN

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd

    from memwatch.analysis.findings.finding import Finding
    from memwatch.ranks.member import Member
    from memwatch.reading import Reading


class Ranks:
    """Many processes of one job. Sizes are in bytes, and each process's figures are those at its own peak.

    Comparisons are of the ranks, or of all processes where none is a rank, that mainly used the same kind of device.
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
        """Whether the processes that are compared are ranks of a job: then they do the same work."""
        return bool(self.compared) and all(self._members[name].rank is not None for name in self.compared)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row per process: its place in the job, its peak, and where that was."""
        return tables.ranks_table(self._members)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The peak of every step in every process."""
        return tables.steps_table(self._members)

    @cached_property
    def categories(self) -> pd.DataFrame:
        """What the peak of each process is made of: a column for each category."""
        return tables.categories_table(self._members)

    @cached_property
    def sites(self) -> pd.DataFrame:
        """The largest of what was alive at the peak of each process, by category, module and line."""
        return tables.sites_table(self._members)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """What some ranks have more of at their peaks than others, largest difference first."""
        return tables.differences(self._members, self.compared)

    @cached_property
    def notes(self) -> list[tuple[str, str]]:
        """What must be known of the figures: ranks that are missing or cut, other versions, other clocks."""
        return notes(self._members, self.compared)

    @property
    def worst(self) -> str:
        """The process with the highest peak, of those that are compared; empty where nothing is known of any."""
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
        """What would lower the peak of the worst process; empty where its recording is not there."""
        return [] if self.worst_reading is None else self.worst_reading.findings

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any process that is compared."""
        return max(self._peak_bytes.values(), default=0)

    @property
    def imbalance_ratio(self) -> float:
        """How far the highest peak is above the mean: 0 where all are alike, 0.5 where it is half as much again."""
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

    def summary(self, **options: Any) -> str:
        """Return the job as text; the options are those of `memwatch.ranks.terminal.summary`."""
        from memwatch.ranks.terminal import summary

        return summary(self, **options)

    def report(self, path: str | os.PathLike[str], *, source: bool = True, force: bool = False) -> Path:
        """Write the HTML page of the job, and beside it the whole page of the worst process if its capture is there.

        Args:
            path: the file to write.
            source: whether file paths and source lines may be in the page.
            force: whether an existing file may be replaced.
        """
        from memwatch.ranks.page import write_page

        return write_page(self, path, source=source, force=force)


def _with_parents(members: Sequence[Member]) -> list[Member]:
    """Return the processes, those that a rank started with its number."""
    ranks = {(member.meta.get("host"), member.meta.get("pid")): member.rank for member in members}
    found = []
    for member in members:
        parent = ranks.get((member.meta.get("host"), member.meta.get("parent_pid")))
        is_child = parent is not None and member.rank is None
        found.append(replace(member, meta={**member.meta, "of_rank": parent}) if is_child else member)
    return found


def _by_name(members: Sequence[Member]) -> dict[str, Member]:
    """Return processes by name, ranks first and in order; twins are told apart by their numbers."""
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
