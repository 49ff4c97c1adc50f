"""The tables of a job: one row per process, per step, per category and per site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from memwatch.capture.schema import CATEGORIES
from memwatch.words.ranks import MORE_ON, ONLY_ON, listed, rank_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.ranks.member import Member

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


def ranks_table(members: Mapping[str, Member]) -> pd.DataFrame:
    """Return one row per process, also of those of which nothing is known; numbers that are not known are missing."""
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
    """Return the peak of each step in each process; of a long run a row is the highest of `steps` steps."""
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
    """Return what is alive at each process's own peak, put together by category, module, what it is and line."""
    rows = [
        (name, *site)
        for name, member in members.items()
        if member.summary
        for site in member.summary["sites"]
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["process", *SITE, "nbytes", "count"])
    return table


def differences(members: Mapping[str, Member], compared: Sequence[str]) -> pd.DataFrame:
    """Return the sites of which some ranks have more than others, largest difference first.

    A summary lists the largest sites; of one that it does not list, a rank may have as much as of the smallest that it
    does. What may be no difference for that reason is left out.

    Args:
        members: the processes by name.
        compared: those that are compared.

    Returns:
        Columns `lowest_bytes`, `highest_bytes`, `spread_bytes`, and `where`: which ranks have it, or which has most.
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
    """Return sites of which each has the module that it has in another process, where it was seen in none in its own.

    That is known where no process has two such sites: a gradient bucket of DDP may have been seen amid its module's
    backward in one rank, and in the other after it.
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
