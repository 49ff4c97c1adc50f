"""The tables `storages` and `at_peak`: one row per piece of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from memwatch.analysis.facts.biographies import PHASE_NAMES
from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.facts.places import with_empty_end
from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import NONE, ORIGINS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders import Holders
    from memwatch.capture.packed import IntArray

_ORIGINS: Final = np.array([*ORIGINS, "workspace", "unrecorded"], dtype=object)


def storages(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `storages`.

    Args:
        facts: what the capture shows.
        rows: the allocations that are wanted; by default all.
        wanted: the columns that are wanted; by default all.
        coded: whether texts are categories of pandas.
    """
    index = pd.RangeIndex(len(facts.allocations)) if rows is None else pd.Index(rows)
    chosen = slice(None) if rows is None else index.to_numpy()
    columns = _columns(facts, chosen)
    return table("storages", columns, index=index.rename("storage"), wanted=wanted, coded=coded)


def _columns(facts: Facts, rows: IntArray | slice) -> dict[str, Callable[[], Any]]:
    """Return what makes each column for some rows."""
    allocations = facts.allocations
    return {
        "nbytes": lambda: allocations.nbytes[rows],
        "device": lambda: Coded(facts.strings, allocations.device[rows]),
        "category": lambda: facts.categories.category.of(rows),
        "rule": lambda: facts.categories.rule.of(rows),
        "name": lambda: facts.names(rows),
        "tensor": lambda: Coded(facts.strings, _shapes(facts)[rows]),
        "origin": lambda: Coded(_ORIGINS, allocations.origin[rows]),
        "module": lambda: facts.made_by.module_name.of(rows),
        "op": lambda: allocations.op[rows],
        "op_name": lambda: facts.made_by.op_name.of(rows),
        "line": lambda: facts.made_by.line.of(rows),
        "own_line": lambda: facts.made_by.own_line.of(rows),
        "birth_event": lambda: allocations.birth_event[rows],
        "death_event": lambda: allocations.death_event[rows],
        "birth_ns": lambda: facts.since_start(allocations.birth_ns[rows]),
        "death_ns": lambda: facts.since_start(allocations.death_ns[rows]),
        "lag_ns": lambda: facts.biographies.lag_ns(rows),
        "use_ns": lambda: facts.biographies.use_ns(rows),
        "drag_ns": lambda: facts.biographies.drag_ns(rows),
        "void_ns": lambda: facts.biographies.void_ns(rows),
        "first_use_op": lambda: facts.use_bounds.first_op[rows],
        "last_use_op": lambda: facts.use_bounds.last_op[rows],
        "address": lambda: allocations.address[rows],
        "stack": lambda: facts.made_by.stack[rows],
        "counted": lambda: allocations.counted[rows],
    }


def _shapes(facts: Facts) -> IntArray:
    """Return the string id of dtype and shape of each allocation, -1 for memory that no tensor named."""
    births, allocations = facts.capture.tables["births"], facts.allocations
    shapes = np.full(len(allocations), NONE, dtype=np.int32)
    shapes[births["storage"]] = births["shape"]
    later = allocations.is_later_block
    shapes[later] = shapes[allocations.storage[later]]
    return shapes


def held_at(facts: Facts, holders: Holders, rows: pd.DataFrame, event: int) -> pd.DataFrame:
    """Return the table `at_peak`, of the peak or of another event.

    Args:
        facts: what the capture shows.
        holders: who held what.
        rows: the rows of `storages` that were alive just after the event.
        event: a row of the timeline.
    """
    rows = rows.sort_values("nbytes", ascending=False, kind="stable")
    columns: dict[str, Any] = {column: rows[column] for column in rows.columns}
    columns["share_ratio"] = rows["nbytes"] / max(facts.curve.peak_bytes, 1)
    phases = facts.biographies.phase_at(event, rows.index.to_numpy())
    columns["phase"] = with_empty_end([*PHASE_NAMES])[phases]
    columns |= _holders(facts, holders, rows, event)
    return table("at_peak", columns, index=rows.index)


def _holders(facts: Facts, holders: Holders, rows: pd.DataFrame, event: int) -> dict[str, Any]:
    """Return the columns about holders; empty text where none could be recorded."""
    if facts.capture.lacks("holders"):
        return dict.fromkeys(("holder", "holder_kind", "holder_evidence", "path"), [""] * len(rows))
    held = holders.describe(rows.index.tolist(), event)
    # memory from before the block has no op and no line: the variable that holds it is its best name
    only_older = facts.only_older(rows.index.to_numpy()).tolist()
    names = [
        holder.words if is_only_older and holder.edges else name
        for name, holder, is_only_older in zip(rows["name"], held, only_older, strict=True)
    ]
    return {
        "name": names,
        "holder": [holder.told for holder in held],
        "holder_kind": [holder.kind.value for holder in held],
        "holder_evidence": [holder.evidence.value for holder in held],
        "path": [holder.path for holder in held],
    }
