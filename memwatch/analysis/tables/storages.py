"""The tables `storages` and `at_peak`: one row per piece of memory."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from memwatch.analysis.facts.biographies import PHASE_NAMES
from memwatch.analysis.facts.places import with_empty_end
from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import NONE, ORIGINS

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders import Holders
    from memwatch.capture.packed import IntArray

_ORIGINS: Final = (*ORIGINS, "workspace")


def storages(facts: Facts, rows: IntArray | None = None) -> pd.DataFrame:
    """Return the table `storages`.

    Args:
        facts: what the capture shows.
        rows: the allocations that are wanted; by default all.
    """
    index = pd.RangeIndex(len(facts.allocations)) if rows is None else pd.Index(rows)
    columns = {name: column() for name, column in _columns(facts, index.to_numpy()).items()}
    return table("storages", columns, index=index.rename("storage"))


def _columns(facts: Facts, rows: IntArray) -> dict[str, Callable[[], Any]]:
    """Return how to make each column for some rows: one is made after the other, for they may be large."""
    allocations, categories, made, life = (
        facts.allocations, facts.categories, facts.made_by, facts.biographies,
    )  # fmt: skip
    plain = {
        "nbytes": allocations.nbytes,
        "category": categories.category,
        "rule": categories.rule,
        "module": made.module_name,
        "op": allocations.op,
        "op_name": made.op_name,
        "line": made.line,
        "own_line": made.own_line,
        "birth_event": allocations.birth_event,
        "death_event": allocations.death_event,
        "lag_ns": life.lag_ns,
        "use_ns": life.use_ns,
        "drag_ns": life.drag_ns,
        "void_ns": life.void_ns,
        "first_use_op": facts.use_bounds.first_op,
        "last_use_op": facts.use_bounds.last_op,
        "address": allocations.address,
        "stack": made.stack,
        "counted": allocations.counted,
    }
    return {
        **{name: functools.partial(operator.getitem, column, rows) for name, column in plain.items()},
        "device": lambda: facts.strings[allocations.device[rows]],
        "name": lambda: facts.names(rows),
        "tensor": lambda: facts.strings[_shapes(facts)[rows]],
        "origin": lambda: np.array(_ORIGINS, dtype=object)[allocations.origin[rows]],
        "birth_ns": lambda: facts.since_start(allocations.birth_ns[rows]),
        "death_ns": lambda: facts.since_start(allocations.death_ns[rows]),
    }


def _shapes(facts: Facts) -> IntArray:
    """Return the string id of dtype and shape of each allocation, -1 for memory that no tensor named."""
    births, allocations = facts.capture.tables["births"], facts.allocations
    shapes = np.full(len(allocations), NONE, dtype=np.int32)
    shapes[births["storage"]] = births["shape"]
    later = allocations.is_later_block
    shapes[later] = shapes[allocations.storage[later]]
    return shapes


def at_peak(facts: Facts, holders: Holders, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table `at_peak`.

    Args:
        facts: what the capture shows.
        holders: who held what.
        rows: the rows of `storages` that were alive at the peak.
    """
    rows = rows.sort_values("nbytes", ascending=False, kind="stable")
    columns: dict[str, Any] = {column: rows[column] for column in rows.columns}
    columns["share_ratio"] = rows["nbytes"] / max(facts.curve.peak_bytes, 1)
    phases = facts.biographies.phase_at(facts.curve.peak_event, rows.index.to_numpy())
    columns["phase"] = with_empty_end([*PHASE_NAMES])[phases]
    columns |= _holders(facts, holders, rows)
    return table("at_peak", columns, index=rows.index)


def _holders(facts: Facts, holders: Holders, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the columns about holders; empty text where none could be recorded."""
    if facts.capture.lacks("holders"):
        return dict.fromkeys(("holder", "holder_kind", "holder_evidence", "path"), [""] * len(rows))
    held = holders.describe(rows.index.tolist(), facts.curve.peak_event)
    return {
        "holder": [holder.told for holder in held],
        "holder_kind": [holder.kind.value for holder in held],
        "holder_evidence": [holder.evidence.value for holder in held],
        "path": [holder.path for holder in held],
    }
