"""The table `steps`: one row per iteration."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memwatch.analysis.facts.iterations import MARK
from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def step_of(facts: Facts, ops: IntArray, start_ns: IntArray) -> IntArray:
    """Return the number of the step of each op, by the op's number and the time at which it started."""
    if len(facts.steps):
        return facts.steps.at(start_ns)
    marks: IntArray = facts.capture.tables["steps"]["op"][_marks(facts)]
    return np.searchsorted(marks, ops, side="right")


def _marks(facts: Facts) -> NDArray[np.bool_]:
    """Return the rows of the recorded `steps` that are calls of `prof.step()`."""
    marks: NDArray[np.bool_] = facts.strings[facts.capture.tables["steps"]["name"]] == MARK
    return marks


def steps(facts: Facts) -> pd.DataFrame:
    """Return the table `steps`: the stretches between the marks, the last one ending with the block."""
    columns = _by_curve_of_steps(facts) if len(facts.steps) else _by_live_curve(facts)
    columns["start_ns"] = facts.since_start(columns["start_ns"])
    return table("steps", columns, index=pd.RangeIndex(len(columns["start_ns"]), name="step"))


def _by_curve_of_steps(facts: Facts) -> dict[str, Any]:
    """Return the columns where the allocator told the peaks of the steps."""
    told, starts_ns = facts.steps, facts.capture.tables["ops"]["start_ns"]
    peak_op = np.full(len(told), NONE, dtype=np.int64)
    for step in np.flatnonzero(told.recorded).tolist():
        first, after = _events(facts, int(told.start_ns[step]), int(told.end_ns[step]))
        peak_op[step] = facts.op_of_event[first + int(np.argmax(facts.curve.live_bytes[first:after]))]
    return {
        "start_op": np.searchsorted(starts_ns, told.start_ns),
        "end_op": np.searchsorted(starts_ns, told.end_ns),
        "start_ns": told.start_ns,
        "duration_ns": told.end_ns - told.start_ns,
        "peak_bytes": told.peak_bytes,
        "peak_op": peak_op,
        "floor_bytes": told.floor_bytes,
        "end_live_bytes": told.end_live_bytes,
        "recorded": told.recorded,
    }


def _by_live_curve(facts: Facts) -> dict[str, Any]:
    """Return the columns where every step was recorded."""
    bounds_op, bounds_ns = _bounds(facts)
    curve = facts.curve
    columns: dict[str, Any] = {
        name: [] for name in ("peak_bytes", "peak_op", "floor_bytes", "end_live_bytes")
    }
    for first_ns, after_ns in itertools.pairwise(bounds_ns.tolist()):
        first, after = _events(facts, first_ns, after_ns)
        peak = first + int(np.argmax(curve.live_bytes[first:after]))
        columns["peak_bytes"].append(int(curve.live_bytes[peak]))
        columns["peak_op"].append(int(facts.op_of_event[peak]))
        columns["floor_bytes"].append(int(curve.live_bytes[first:after].min()))
        columns["end_live_bytes"].append(int(curve.live_bytes[after - 1]))
    return {
        **columns,
        "start_op": bounds_op[:-1],
        "end_op": bounds_op[1:],
        "start_ns": bounds_ns[:-1],
        "duration_ns": np.diff(bounds_ns),
        "recorded": np.ones(len(bounds_ns) - 1, dtype=bool),
    }


def _events(facts: Facts, first_ns: int, after_ns: int) -> tuple[int, int]:
    """Return the event with which a stretch of time begins, that before it, and the one after its last."""
    time_ns = facts.curve.time_ns
    first = max(int(np.searchsorted(time_ns, first_ns, side="right")) - 1, 0)
    return first, max(int(np.searchsorted(time_ns, after_ns, side="right")), first + 1)


def _bounds(facts: Facts) -> tuple[IntArray, IntArray]:
    """Return where iterations start and end: the numbers of the ops, and unix times."""
    recorded, marked = facts.capture.tables["steps"], _marks(facts)
    ops, times_ns = recorded["op"][marked], recorded["time_ns"][marked]
    meta, last = facts.capture.meta, facts.capture.rows("ops")
    end_ns = max(int(meta.get("end_ns", 0)), int(facts.curve.time_ns[-1]))
    bounds_op = np.concatenate([[0], ops, [last]])
    bounds_ns = np.concatenate([[int(meta.get("start_ns", 0))], times_ns, [end_ns]])
    if len(ops) and ops[-1] == last:  # the block ended with a mark: nothing came after it
        return bounds_op[:-1], bounds_ns[:-1]
    return bounds_op, bounds_ns
