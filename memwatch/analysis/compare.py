"""Compare two captures: how the peak changed, and which sites made the change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pandas as pd

from memwatch.analysis.tables import TEXT
from memwatch.capture.schema import NONE, PHASES
from memwatch.kinds.roles import OF_TRAINING
from memwatch.words.storages import file_of_line, file_of_site, site_in_file, site_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.analysis.derived_tables import DerivedTables

    Site = tuple[str, str, str]
    """Category, module and site: the index of a row."""


@dataclass(frozen=True)
class PeakMoment:
    """The op at the peak. Two are equal if they differ only in the line, which moves when lines above it change.

    Attributes:
        op_name: its name.
        phase: its phase.
        function: the program's function that called it.
        line: the line that called it, as `file:line`.
    """

    op_name: str
    phase: str
    function: str
    line: str = field(compare=False)


@dataclass(frozen=True)
class PeakSites:
    """The figures of one capture that a comparison needs.

    They are small, so two captures need not be in memory at once.

    Attributes:
        device: the device of the figures.
        peak_bytes: most live bytes.
        sites: the storages that were alive at the peak. One row per (category, module, site); columns `bytes` and
            `count`.
        lines: the line that allocated most bytes of each site, as `file:line`; "" if unknown.
        moment: the op at the peak; None if it was not recorded.
    """

    device: str
    peak_bytes: int
    sites: pd.DataFrame
    lines: Mapping[Site, str]
    moment: PeakMoment | None = None


@dataclass(frozen=True)
class Comparison:
    """Two captures side by side.

    Attributes:
        device: the device of all figures, by its name in the new capture.
        old_peak_bytes: most live bytes of the old capture.
        new_peak_bytes: most live bytes of the new capture.
        sites: the storages that were alive at either peak. One row per (category, module, site), largest change
            first; columns `old_bytes`, `new_bytes`, `delta_bytes` (bytes), `old_count`, `new_count` (storages).
        new_lines: the line that allocated most bytes of each site of the new capture, as `file:line`.
        moved_to: the op at the new peak, if the old peak was at another op; else None.
        renamed_files: the new name of each old file that is compared with a file of another name.
        old_files: the files of the old sites, if none of them is matched with a file of the new sites; else empty.
        new_files: the files of the new sites, in the same case.
    """

    device: str
    old_peak_bytes: int
    new_peak_bytes: int
    sites: pd.DataFrame
    new_lines: Mapping[Site, str]
    moved_to: PeakMoment | None = None
    renamed_files: Mapping[str, str] = field(default_factory=dict)
    old_files: tuple[str, ...] = ()
    new_files: tuple[str, ...] = ()

    @property
    def growth_ratio(self) -> float:
        """Growth of the peak: 0.05 is 5 % more, negative is less, infinite if there was nothing before."""
        if self.new_peak_bytes == self.old_peak_bytes:
            return 0.0
        return self.new_peak_bytes / self.old_peak_bytes - 1 if self.old_peak_bytes else float("inf")


def peak_sites(tables: DerivedTables) -> PeakSites:
    """Return the sites of a capture's peak, for one device.

    A site is the name of a parameter, gradient or state. For other storages it is an op and the function that called
    it. A site is not a line: an edit moves all lines below it, and each of them would seem to have changed.
    """
    sites, lines = _by_site(tables)
    return PeakSites(tables.facts.device, tables.facts.curve.peak_bytes, sites, lines, _moment(tables))


def compare(old: PeakSites, new: PeakSites) -> Comparison:
    """Compare the peaks of two captures.

    Args:
        old: the peak to compare with.
        new: the peak that is judged.

    Returns:
        Peaks and sites.
    """
    renamed = _match_files(old.lines, new.lines)
    files = [_files_of(each.lines) for each in (old, new)]
    apart = files if not renamed and set(files[0]).isdisjoint(files[1]) else [(), ()]
    before = _with_names(old.sites, old.lines, renamed).add_prefix("old_")
    after = new.sites.add_prefix("new_")
    sites = before.join(after, how="outer").fillna(0).astype("int64")
    sites["delta_bytes"] = sites["new_bytes"] - sites["old_bytes"]
    sites = sites[["old_bytes", "new_bytes", "delta_bytes", "old_count", "new_count"]]
    order = sites["delta_bytes"].abs().sort_values(ascending=False, kind="stable").index
    has_moved = None not in (old.moment, new.moment) and old.moment != new.moment
    return Comparison(
        new.device,
        old.peak_bytes,
        new.peak_bytes,
        sites.loc[order],
        new.lines,
        new.moment if has_moved else None,
        renamed,
        *apart,
    )


def _moment(tables: DerivedTables) -> PeakMoment | None:
    facts = tables.facts
    op = facts.op_at(tables.peak_event)
    if op == NONE:
        return None
    stack = facts.capture.tables["ops"]["stack"][[op]]
    function = str(facts.places.functions(stack)[0])
    return PeakMoment(facts.op_name(op), PHASES[facts.op_phase(op)], function, facts.op_line(op))


def _by_site(tables: DerivedTables) -> tuple[pd.DataFrame, dict[Site, str]]:
    peak = tables.at_peak
    functions = tables.facts.places.functions(
        tables.part("storages", ["stack"], peak.index.to_numpy())["stack"].to_numpy()
    )
    rows = zip(peak["category"], peak["name"], peak["op_name"], peak["line"], functions, strict=True)
    site = [
        name if category in OF_TRAINING else _site(op_name, line, function) or name
        for category, name, op_name, line, function in rows
    ]
    keys = [peak["category"], peak["module"], pd.Series(site, index=peak.index, name="site", dtype=TEXT)]
    groups = peak["nbytes"].groupby(keys, sort=False)
    counted: pd.DataFrame = pd.concat({"bytes": groups.sum(), "count": groups.size()}, axis=1)
    by_line = peak["nbytes"].groupby([*keys, peak["line"]], sort=False).sum().sort_values(kind="stable")
    # of several lines of a site, the last one stays: it has the most bytes
    lines = {(category, module, name): line for category, module, name, line in by_line.index}
    return counted, lines


def _site(op_name: str, line: str, function: str) -> str:
    return site_name(op_name, function, file_of_line(line))


# Match the files of two captures that have different names, as of a script and its changed copy.
#
# The name of a site has a file's name in it, so no site of `train.py` has the name of a site of `train_2.py`. The two
# files count as one file if the same functions call the same ops in the same modules.
_LEAST_COMMON_RATIO: Final = 0.5
"""Of the sites of the file with fewer sites. Other programs may have one function and op in common. A guess."""


def _match_files(old: Mapping[Site, str], new: Mapping[Site, str]) -> dict[str, str]:
    """Return the new name of each file of the old sites that has another name in the new sites.

    Only a file that the other capture does not have is matched. Of several files, those with most common sites are
    matched first.

    Args:
        old: the sites of the old capture, each with a line, as `PeakSites.lines` has them.
        new: the sites of the new one.
    """
    in_old, in_new = _sites_by_file(old), _sites_by_file(new)
    common: Counter[tuple[str, str]] = Counter(
        {
            (file, other): len(in_old[file] & in_new[other])
            for file in in_old.keys() - in_new.keys()
            for other in in_new.keys() - in_old.keys()
        }
    )
    found: dict[str, str] = {}
    for (file, other), count in sorted(common.items(), key=lambda each: (-each[1], each[0])):
        is_alike = count >= _LEAST_COMMON_RATIO * min(len(in_old[file]), len(in_new[other]))
        if is_alike and file not in found and other not in found.values():
            found[file] = other
    return found


def _files_of(lines: Mapping[Site, str]) -> tuple[str, ...]:
    """Return the files of sites, each once, in the order of the sites."""
    names = (file_of_site(site, line) for (_, _, site), line in lines.items())
    return tuple(dict.fromkeys(filter(None, names)))


def _with_names(sites: pd.DataFrame, lines: Mapping[Site, str], renamed: Mapping[str, str]) -> pd.DataFrame:
    """Return `PeakSites.sites` with the new names of files in its index."""
    if not renamed:
        return sites
    table: pd.DataFrame = sites.copy()
    keys = [_renamed(key, lines.get(key, ""), renamed) for key in table.index]
    table.index = pd.MultiIndex.from_tuples(keys, names=table.index.names)
    return table


def _renamed(key: Site, line: str, renamed: Mapping[str, str]) -> Site:
    category, module, site = key
    file = file_of_site(site, line)
    return (category, module, site_in_file(site, file, renamed[file])) if file in renamed else key


def _sites_by_file(lines: Mapping[Site, str]) -> dict[str, set[Site]]:
    """Return the sites of each file, without the name of the file."""
    found: dict[str, set[Site]] = {}
    for (category, module, site), line in lines.items():
        if file := file_of_site(site, line):
            found.setdefault(file, set()).add((category, module, site_in_file(site, file, "")))
    return found
