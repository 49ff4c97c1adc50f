"""The table `modules`: bytes by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memwatch.analysis.facts.places import with_empty_end
from memwatch.analysis.tables.of_schema import table
from memwatch.analysis.texts import TEXT
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.capture.packed import IntArray


def modules(facts: Facts, at_peak: pd.DataFrame, saved: SavedTensors) -> pd.DataFrame:
    """Return the table `modules`.

    Args:
        facts: what the capture shows.
        at_peak: the table `at_peak`.
        saved: what autograd saved.
    """
    tree, allocations = facts.places.module_tree, facts.allocations
    parents, count = tree.parents, len(tree.names)
    module = facts.made_by.module_name.codes
    owned = facts.categories.category.isin(["parameter", "buffer"])
    held = _saved_at_peak(facts, saved)
    columns = {
        "parameter_bytes": _sum_by_module(module[owned], allocations.nbytes[owned], count),
        "own_bytes": _sum_by_module(module[at_peak.index], at_peak["nbytes"].to_numpy(), count),
        "born_bytes": _sum_by_module(
            np.where(allocations.op == NONE, NONE, module), allocations.nbytes, count
        ),
        "saved_bytes": _sum_by_module(
            saved.module.codes[held], allocations.nbytes[saved.storage[held]], count
        ),
    }
    columns["inclusive_bytes"] = columns["own_bytes"].copy()
    for number in reversed(tree.parents_first):
        if parents[number] != NONE:
            for name in ("inclusive_bytes", "saved_bytes", "born_bytes"):
                columns[name][parents[number]] += columns[name][number]
    calls = np.zeros(count, dtype=np.int64)
    np.add.at(calls, facts.capture.tables["calls"]["module"], 1)
    # a wrapper and the wrapped module share a name, so one row has the bytes of both, and the class of the wrapped one
    classes = list(tree.classes)
    for number in reversed(tree.parents_first):
        if number in tree.wrapped:
            classes[parents[number]] = classes[number]
            for name in ("parameter_bytes", "own_bytes"):
                columns[name][parents[number]] += columns[name][number]
    parent_names = with_empty_end(tree.names)[np.array(parents, dtype=np.int64)]
    words = {"class_name": classes, "parent": parent_names}
    index = pd.Index(tree.names, name="module", dtype=TEXT)
    rows = table("modules", {**words, "calls": calls, **columns}, index=index)
    shown = [number for number in tree.parents_first if number not in tree.wrapped]
    in_tree_order: pd.DataFrame = rows.iloc[shown]
    return in_tree_order


def _saved_at_peak(facts: Facts, saved: SavedTensors) -> IntArray:
    """Return the saved tensors that are held at the peak, the first of each storage: it counts once, and whole."""
    held = np.flatnonzero(saved.held_at(facts.op_at_peak) & (saved.storage != NONE))
    _, first = np.unique(saved.storage[held], return_index=True)
    return held[first]


def _sum_by_module(modules: IntArray, nbytes: IntArray, count: int) -> IntArray:
    """Return the bytes of each module; -1 is none."""
    total = np.zeros(count + 1, dtype=np.int64)
    np.add.at(total, modules, nbytes)
    return total[:count]
