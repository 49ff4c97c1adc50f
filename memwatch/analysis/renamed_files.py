"""Match the files of two captures that have different names, as of a script and its changed copy.

The name of a site has a file's name in it, so no site of `train.py` would have the name of a site of `train_2.py`. Two
such files are one where the same functions call the same ops in the same modules.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pandas as pd

from memwatch.words.storages import file_of_site, site_in_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    Site = tuple[str, str, str]
    """Category, module and site."""

_LEAST_COMMON_RATIO: Final = 0.5
"""Of the sites of the file with fewer sites. Other programs may have one function and op in common. A guess."""


def renamed_files(old: Mapping[Site, str], new: Mapping[Site, str]) -> dict[str, str]:
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


def files_of(lines: Mapping[Site, str]) -> tuple[str, ...]:
    """Return the files of sites, each once, in the order of the sites."""
    names = (file_of_site(site, line) for (_, _, site), line in lines.items())
    return tuple(dict.fromkeys(filter(None, names)))


def with_names(sites: pd.DataFrame, lines: Mapping[Site, str], renamed: Mapping[str, str]) -> pd.DataFrame:
    """Return a table with the index of `PeakSites.sites`, with other names of its files."""
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
