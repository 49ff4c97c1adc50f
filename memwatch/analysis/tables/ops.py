"""The table `ops`: what each op made, and how many bytes were live while it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from memwatch.analysis.facts.allocations import UNOBSERVED, WORKSPACE
from memwatch.analysis.tables.of_schema import table
from memwatch.analysis.tables.steps import step_marks
from memwatch.capture.schema import NONE, PHASES

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def ops(facts: Facts) -> pd.DataFrame:
    """Return the table `ops`."""
    recorded, places = facts.capture.tables["ops"], facts.places
    marks = facts.capture.tables["steps"]["op"][step_marks(facts)]
    memory = _memory(facts)
    return table(
        "ops",
        {
            "name": facts.strings[recorded["name"]],
            "phase": np.array(PHASES, dtype=object)[recorded["phase"]],
            "module": places.modules(places.module_of_op),
            "module_class": places.classes(places.module_of_op),
            "line": places.lines(recorded["stack"]),
            "own_line": places.own_lines(recorded["stack"]),
            "function": places.functions(recorded["stack"]),
            "stack": recorded["stack"],
            "step": np.searchsorted(marks, recorded["op"], side="right"),
            "start_ns": facts.since_start(recorded["start_ns"]),
            "duration_ns": recorded["end_ns"] - recorded["start_ns"],
            "born_bytes": _born_bytes(facts),
            "workspace_bytes": memory.workspace_bytes,
            "live_bytes": memory.live_bytes,
            "peak_bytes": memory.peak_bytes,
            "failed": recorded["failed"] == 1,
        },
        index=pd.RangeIndex(len(recorded["op"]), name="op"),
    )


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
    # The last row of `origin` stands for the first event, which is no allocation's.
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
