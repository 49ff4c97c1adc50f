"""The table `modules`: bytes by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memwatch.analysis.facts.places import with_empty_end
from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def modules(facts: Facts, storages: pd.DataFrame, at_peak: pd.DataFrame, saved: pd.DataFrame) -> pd.DataFrame:
    """Return the table `modules`.

    Args:
        facts: what the capture shows.
        storages: the table `storages`.
        at_peak: the table `at_peak`.
        saved: the table `saved`.
    """
    tree = facts.places.module_tree
    parents, count = tree.parents, len(tree.names)
    number_of = {name: number for number, name in enumerate(tree.names)}
    owned = storages[storages["category"].isin(["parameter", "buffer"])]
    columns = {
        "parameter_bytes": _sum_by_module(owned, number_of, count),
        "own_bytes": _sum_by_module(at_peak, number_of, count),
        "born_bytes": _sum_by_module(storages[storages["op"] != NONE], number_of, count),
        "saved_bytes": _sum_by_module(_saved_at_peak(saved, storages), number_of, count),
    }
    columns["inclusive_bytes"] = columns["own_bytes"].copy()
    for number in reversed(tree.parents_first):
        if parents[number] != NONE:
            for name in ("inclusive_bytes", "saved_bytes", "born_bytes"):
                columns[name][parents[number]] += columns[name][number]
    calls = np.zeros(count, dtype=np.int64)
    np.add.at(calls, facts.capture.tables["calls"]["module"], 1)
    parent_names = with_empty_end(tree.names)[np.array(parents, dtype=np.int64)]
    words = {"class_name": tree.classes, "parent": parent_names}
    index = pd.Index(tree.names, name="module", dtype="str")
    rows = table("modules", {**words, "calls": calls, **columns}, index=index)
    in_tree_order: pd.DataFrame = rows.iloc[tree.parents_first]
    return in_tree_order


def _saved_at_peak(saved: pd.DataFrame, storages: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `saved` that are held at the peak, each storage once and with its whole size."""
    rows = saved[saved["at_peak"] & (saved["storage"] != NONE)].drop_duplicates("storage")
    held: pd.DataFrame = rows.assign(nbytes=storages["nbytes"].reindex(rows["storage"]).to_numpy())
    return held


def _sum_by_module(rows: pd.DataFrame, number_of: dict[str, int], count: int) -> IntArray:
    total = np.zeros(count, dtype=np.int64)
    for name, nbytes in rows.groupby("module")["nbytes"].sum().items():
        if name in number_of:
            total[number_of[str(name)]] += int(nbytes)
    return total
