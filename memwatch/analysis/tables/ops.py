"""The table `ops`: what each op made, and how many bytes were live while it ran."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from memwatch.analysis.facts.allocations import UNOBSERVED, WORKSPACE
from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.tables.of_schema import table
from memwatch.analysis.tables.steps import step_of
from memwatch.capture.schema import NONE, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def ops(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `ops`, or some of its rows and columns."""
    recorded, places = facts.capture.tables["ops"], facts.places
    chosen = slice(None) if rows is None else rows
    memory = functools.cache(lambda: _memory(facts))
    columns: dict[str, Callable[[], Any]] = {
        "name": lambda: Coded(facts.strings, recorded["name"][chosen]),
        "phase": lambda: Coded(np.array(PHASES, dtype=object), recorded["phase"][chosen]),
        "module": lambda: places.modules(places.module_of_op[chosen]),
        "module_class": lambda: places.classes(places.module_of_op[chosen]),
        "line": lambda: places.lines(recorded["stack"][chosen]),
        "own_line": lambda: places.own_lines(recorded["stack"][chosen]),
        "function": lambda: places.functions(recorded["stack"][chosen]),
        "stack": lambda: recorded["stack"][chosen],
        "step": lambda: step_of(facts, recorded["op"][chosen], recorded["start_ns"][chosen]),
        "start_ns": lambda: facts.since_start(recorded["start_ns"][chosen]),
        "duration_ns": lambda: recorded["end_ns"][chosen] - recorded["start_ns"][chosen],
        "born_bytes": lambda: _born_bytes(facts)[chosen],
        "workspace_bytes": lambda: memory().workspace_bytes[chosen],
        "live_bytes": lambda: memory().live_bytes[chosen],
        "peak_bytes": lambda: memory().peak_bytes[chosen],
        "failed": lambda: recorded["failed"][chosen] == 1,
    }
    index = pd.RangeIndex(facts.capture.rows("ops")) if rows is None else pd.Index(rows)
    return table("ops", columns, index=index.rename("op"), wanted=wanted, coded=coded)


def _born_bytes(facts: Facts) -> IntArray:
    """Return the bytes of the storages that each op made."""
    allocations, count = facts.allocations, facts.capture.rows("ops")
    born = np.zeros(count, dtype=np.int64)
    made = (allocations.op != NONE) & (allocations.origin != WORKSPACE) & (allocations.origin != UNOBSERVED)
    made &= allocations.op < count  # a program that was killed may leave a birth without its op
    np.add.at(born, allocations.op[made], allocations.nbytes[made])
    return born


class _Memory(NamedTuple):
    """Per op: live bytes at its end, the most while it ran, and the most workspace it held."""

    live_bytes: IntArray
    peak_bytes: IntArray
    workspace_bytes: IntArray


def _memory(facts: Facts) -> _Memory:
    recorded, curve = facts.capture.tables["ops"], facts.curve
    first = np.searchsorted(curve.time_ns, recorded["start_ns"], side="left")
    after = np.searchsorted(curve.time_ns, recorded["end_ns"], side="right")
    live = curve.live_bytes[np.maximum(after - 1, 0)]
    before = curve.live_bytes[np.maximum(first - 1, 0)]
    # The last row of `origin` stands for the first event, which belongs to no allocation.
    origin = np.append(facts.allocations.origin, UNOBSERVED)
    workspace = np.cumsum(np.where(origin[curve.allocation] == WORKSPACE, curve.delta_bytes, 0))
    has_events = after > first
    most = np.where(has_events, _most_between(curve.live_bytes, first, after), before)
    most_workspace = np.where(has_events, _most_between(workspace, first, after), 0)
    return _Memory(live, np.maximum(np.maximum(most, before), live), np.maximum(most_workspace, 0))


def _most_between(values: IntArray, first: IntArray, after: IntArray) -> IntArray:
    """Return the largest of the values in each stretch; where a stretch is empty, any value."""
    if not len(first):
        return np.zeros(0, dtype=np.int64)
    padded = np.append(values, 0)
    bounds = np.column_stack([first, np.maximum(after, first)]).ravel()
    most: IntArray = np.maximum.reduceat(padded, np.minimum(bounds, len(padded) - 1))[::2]
    return most
