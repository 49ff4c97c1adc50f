"""The tables by module, by saved tensor and by iteration."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memwatch.capture.schema import NONE, PHASES

if TYPE_CHECKING:
    from memwatch.analysis.frames import Frames
    from memwatch.capture.packed import IntArray


def saved(frames: Frames) -> pd.DataFrame:
    """Make the table `saved`."""
    from memwatch.analysis.frames import table

    packs, unpacks, ops = (frames.capture.tables[name] for name in ("packs", "unpacks", "ops"))
    count = len(packs["pack"])
    used, released = np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int64)
    used[unpacks["pack"][unpacks["released"] == 0][::-1]] = unpacks["op"][unpacks["released"] == 0][::-1]
    released[unpacks["pack"][unpacks["released"] == 1]] = unpacks["op"][unpacks["released"] == 1]
    op = _op_of_node(ops, packs["sequence"])
    places = frames.places
    has = op != NONE
    safe = np.where(has, op, 0)
    stack = np.where(has, ops["stack"][safe], NONE) if len(ops["op"]) else np.full(count, NONE)
    peak_op = int(frames.timeline["op"].iloc[frames.curve.peak_event])
    held = (packs["op"] <= peak_op) & ((released == NONE) | (released > peak_op))
    return table(
        "saved",
        {
            "storage": packs["storage"],
            "nbytes": packs["nbytes"],
            "tensor": frames.strings[packs["shape"]],
            "op": op,
            "op_name": np.where(has, frames.strings[ops["name"][safe]], "")
            if len(ops["op"])
            else [""] * count,
            "module": np.array([*places.module_names, ""], dtype=object)[packs["module"]],
            "line": np.array([*places.line_of_stack, ""], dtype=object)[stack],
            "saved_op": packs["op"],
            "used_op": used,
            "released_op": released,
            "at_peak": held,
        },
        index=pd.RangeIndex(count, name="pack"),
    )


def _op_of_node(ops: dict[str, IntArray], sequence: IntArray) -> IntArray:
    """Give the forward op that ran while the node with each sequence number was the newest; -1 if none."""
    forward = np.flatnonzero((ops["phase"] != PHASES.index("backward")) & (ops["sequence"] != NONE))
    if not len(forward):
        return np.full(len(sequence), NONE, dtype=np.int64)
    numbers, first = np.unique(ops["sequence"][forward], return_index=True)
    position = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    return np.where(numbers[position] == sequence, forward[first[position]], NONE)


def modules(frames: Frames) -> pd.DataFrame:
    """Make the table `modules`."""
    from memwatch.analysis.frames import table

    rows, calls, places = frames.capture.tables["modules"], frames.capture.tables["calls"], frames.places
    count = len(rows["module"])
    number_of = {name: number for number, name in reversed(list(enumerate(places.module_names)))}
    storages, peak = frames.storages, frames.at_peak
    owned = storages[storages["category"].isin(["parameter", "buffer"])]
    columns = {
        "parameter_bytes": _sum_by(owned, number_of, count),
        "own_bytes": _sum_by(peak, number_of, count),
        "born_bytes": _sum_by(storages[storages["op"] != NONE], number_of, count),
    }
    saved_rows = frames.saved
    at_peak = saved_rows[saved_rows["at_peak"] & (saved_rows["storage"] != NONE)].drop_duplicates("storage")
    at_peak = at_peak.assign(nbytes=storages["nbytes"].reindex(at_peak["storage"]).to_numpy())
    columns["saved_bytes"] = _sum_by(at_peak, number_of, count)
    columns["inclusive_bytes"] = columns["own_bytes"].copy()
    parents = rows["parent"].tolist()
    for number in range(count - 1, -1, -1):  # children have larger numbers than their parents
        if parents[number] != NONE:
            for name in ("inclusive_bytes", "saved_bytes", "born_bytes"):
                columns[name][parents[number]] += columns[name][number]
    call_count = np.zeros(count, dtype=np.int64)
    np.add.at(call_count, calls["module"], 1)
    index = pd.Index(places.module_names, name="module", dtype="str")
    return table(
        "modules", {"class_name": places.module_classes, "calls": call_count, **columns}, index=index
    )


def _sum_by(rows: pd.DataFrame, number_of: dict[str, int], count: int) -> IntArray:
    total = np.zeros(count, dtype=np.int64)
    for name, nbytes in rows.groupby("module")["nbytes"].sum().items():
        if name in number_of:
            total[number_of[str(name)]] += int(nbytes)
    return total


def steps(frames: Frames) -> pd.DataFrame:
    """Make the table `steps`: the stretches between the marks, the last one ending with the block."""
    from memwatch.analysis.frames import table

    recorded = frames.capture.tables["steps"]
    marks = recorded["op"][frames.strings[recorded["name"]] == "step"]
    times = recorded["time_ns"][frames.strings[recorded["name"]] == "step"]
    start_ns = int(frames.capture.meta.get("start_ns", 0))
    curve = frames.curve
    end_ns = max(int(frames.capture.meta.get("end_ns", 0)), int(curve.time_ns[-1]))
    last = frames.capture.rows("ops")
    bounds_op = np.concatenate([[0], marks, [last]])
    bounds_ns = np.concatenate([[start_ns], times, [end_ns]])
    if len(marks) and marks[-1] == last:  # the block ended with a mark: nothing came after it
        bounds_op, bounds_ns = bounds_op[:-1], bounds_ns[:-1]
    columns: dict[str, list[Any]] = {name: [] for name in ("peak_bytes", "peak_op", "end_live_bytes")}
    event_op = frames.timeline["op"].to_numpy()
    for first_ns, after_ns in itertools.pairwise(bounds_ns.tolist()):
        first = max(int(np.searchsorted(curve.time_ns, first_ns, side="right")) - 1, 0)
        after = max(int(np.searchsorted(curve.time_ns, after_ns, side="right")), first + 1)
        peak = first + int(np.argmax(curve.live_bytes[first:after]))
        columns["peak_bytes"].append(int(curve.live_bytes[peak]))
        columns["peak_op"].append(int(event_op[peak]))
        columns["end_live_bytes"].append(int(curve.live_bytes[after - 1]))
    return table(
        "steps",
        {"start_op": bounds_op[:-1], "end_op": bounds_op[1:], "duration_ns": np.diff(bounds_ns), **columns},
        index=pd.RangeIndex(len(bounds_op) - 1, name="step"),
    )
