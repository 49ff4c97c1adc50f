"""The table `steps`: one row per iteration."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memwatch.analysis.facts.iterations import MARK
from memwatch.analysis.tables.of_schema import table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def step_marks(facts: Facts) -> NDArray[np.bool_]:
    """Return the rows of the recorded `steps` that are calls of `prof.step()`."""
    marks: NDArray[np.bool_] = facts.strings[facts.capture.tables["steps"]["name"]] == MARK
    return marks


def steps(facts: Facts) -> pd.DataFrame:
    """Return the table `steps`: the stretches between the marks, the last one ending with the block."""
    bounds_op, bounds_ns = _bounds(facts)
    curve = facts.curve
    columns: dict[str, list[Any]] = {name: [] for name in ("peak_bytes", "peak_op", "end_live_bytes")}
    for first_ns, after_ns in itertools.pairwise(bounds_ns.tolist()):
        first = max(int(np.searchsorted(curve.time_ns, first_ns, side="right")) - 1, 0)
        after = max(int(np.searchsorted(curve.time_ns, after_ns, side="right")), first + 1)
        peak = first + int(np.argmax(curve.live_bytes[first:after]))
        columns["peak_bytes"].append(int(curve.live_bytes[peak]))
        columns["peak_op"].append(int(facts.op_of_event[peak]))
        columns["end_live_bytes"].append(int(curve.live_bytes[after - 1]))
    return table(
        "steps",
        {"start_op": bounds_op[:-1], "end_op": bounds_op[1:], "duration_ns": np.diff(bounds_ns), **columns},
        index=pd.RangeIndex(len(bounds_op) - 1, name="step"),
    )


def _bounds(facts: Facts) -> tuple[IntArray, IntArray]:
    """Return where iterations start and end: the numbers of the ops, and unix times."""
    recorded, marked = facts.capture.tables["steps"], step_marks(facts)
    ops, times_ns = recorded["op"][marked], recorded["time_ns"][marked]
    meta, last = facts.capture.meta, facts.capture.rows("ops")
    end_ns = max(int(meta.get("end_ns", 0)), int(facts.curve.time_ns[-1]))
    bounds_op = np.concatenate([[0], ops, [last]])
    bounds_ns = np.concatenate([[int(meta.get("start_ns", 0))], times_ns, [end_ns]])
    if len(ops) and ops[-1] == last:  # the block ended with a mark: nothing came after it
        return bounds_op[:-1], bounds_ns[:-1]
    return bounds_op, bounds_ns
