"""The table `steps`: one row per iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memwatch.analysis.facts.iterations import MARK, events_between
from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def step_of(facts: Facts, ops: IntArray, start_ns: IntArray) -> IntArray:
    """Return the number of the step of each op, by the op's number and the time at which it started."""
    if facts.capture.rows("step_curve"):
        return facts.steps.at(start_ns)
    recorded = facts.capture.tables["steps"]
    marks = recorded["op"][facts.strings[recorded["name"]] == MARK]
    return np.searchsorted(marks, ops, side="right")


def steps(facts: Facts) -> pd.DataFrame:
    """Return the table `steps`: the stretches between the marks, the last one ending with the block."""
    told, curve, starts_ns = facts.steps, facts.curve, facts.capture.tables["ops"]["start_ns"]
    peak_op = np.full(len(told), NONE, dtype=np.int64)
    for step in np.flatnonzero(told.recorded).tolist():
        first, after = events_between(curve, int(told.start_ns[step]), int(told.end_ns[step]))
        peak_op[step] = facts.op_at(first + int(np.argmax(curve.live_bytes[first:after])))
    columns = {
        "start_op": np.searchsorted(starts_ns, told.start_ns),
        "end_op": np.searchsorted(starts_ns, told.end_ns),
        "start_ns": facts.since_start(told.start_ns),
        "duration_ns": told.end_ns - told.start_ns,
        "peak_bytes": told.peak_bytes,
        "peak_op": peak_op,
        "floor_bytes": told.floor_bytes,
        "end_live_bytes": told.end_live_bytes,
        "recorded": told.recorded,
    }
    return table("steps", columns, index=pd.RangeIndex(len(told), name="step"))
