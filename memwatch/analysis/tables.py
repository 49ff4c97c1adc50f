"""The tables that users read, made of facts: one function for each, with the columns of the schema."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd

from memwatch.analysis.facts.allocations import UNOBSERVED, WORKSPACE
from memwatch.analysis.facts.biographies import PHASE_NAMES
from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.facts.iterations import MARK, events_between
from memwatch.analysis.facts.places import with_empty_end
from memwatch.capture.derived import DERIVED_BY_NAME, PANDAS_DTYPE
from memwatch.capture.schema import ACCESSES, NONE, ORIGINS, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders import Holders
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.search import Way
    from memwatch.capture.columns import IntArray
    from memwatch.capture.schema import Kind


TEXT: Final[Any] = (
    pd.StringDtype("python", na_value=np.nan) if int(pd.__version__.partition(".")[0]) >= 3 else "str"
)
"""The dtype of texts: Python's own strings. If pyarrow is installed, pandas 3 would keep texts in Arrow, which cannot
hold undecodable bytes, as names of files may have. Before pandas 3 texts are objects."""


def table(
    name: str,
    columns: dict[str, Any],
    index: Any = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return a DataFrame with the columns and dtypes that the schema defines for table `name`.

    Other columns are dropped.

    Args:
        name: the table.
        columns: the columns, or functions that compute them. A column of a long run is large, so it is computed only
            if it is wanted.
        index: the index.
        wanted: the columns to return, for reading only: they may share memory with the facts. By default all.
        coded: whether a text column with many equal values becomes a category of pandas, with one number per row.
    """
    copy = None if wanted is None else False
    frame: pd.DataFrame = pd.DataFrame(
        {
            column.name: _series(columns[column.name], _dtype(column.kind), index, copy, coded=coded)
            for column in DERIVED_BY_NAME[name].columns
            if wanted is None or column.name in wanted
        },
        index=index,
        copy=copy,
    )
    return frame


def _dtype(kind: Kind) -> Any:
    return TEXT if kind == "text" else PANDAS_DTYPE[kind]


def _series(column: Any, dtype: Any, index: Any, copy: bool | None, *, coded: bool) -> Any:
    made = column() if callable(column) else column
    if coded and isinstance(made, Coded):
        return pd.Series(made.categorical(), index=index, copy=copy)
    return pd.Series(
        np.asarray(made) if isinstance(made, Coded) else made, dtype=dtype, index=index, copy=copy
    )


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


def timeline(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `timeline`, or some of its rows and columns."""
    curve, chosen = facts.curve, slice(None) if rows is None else rows
    columns = {
        "time_ns": lambda: facts.since_start(curve.time_ns[chosen]),
        "op": lambda: facts.ops_at(chosen),
        "storage": lambda: curve.allocation[chosen],
        "delta_bytes": lambda: curve.delta_bytes[chosen],
        "live_bytes": lambda: curve.live_bytes[chosen],
    }
    index = pd.RangeIndex(len(curve.time_ns)) if rows is None else pd.Index(rows)
    return table("timeline", columns, index=index, wanted=wanted, coded=coded)


def uses(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `uses`, or some of its rows and columns."""
    recorded, chosen = facts.capture.tables["uses"], slice(None) if rows is None else rows
    columns = {
        "op": lambda: recorded["op"][chosen],
        "storage": lambda: recorded["storage"][chosen],
        "access": lambda: np.array(ACCESSES, dtype=object)[recorded["access"][chosen]],
    }
    index = None if rows is None else pd.Index(rows)
    return table("uses", columns, index=index, wanted=wanted, coded=coded)


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
    """Return a function for each column, which computes it for some rows."""
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
    """Return the first saved tensor of each storage that autograd holds at the peak. Each storage counts once."""
    held = np.flatnonzero(saved.held_at(facts.op_at_peak) & (saved.storage != NONE))
    _, first = np.unique(saved.storage[held], return_index=True)
    return held[first]


def _sum_by_module(modules: IntArray, nbytes: IntArray, count: int) -> IntArray:
    """Return the bytes of each module. Bytes of no module (-1) are left out."""
    total = np.zeros(count + 1, dtype=np.int64)
    np.add.at(total, modules, nbytes)
    return total[:count]


def saved(facts: Facts, tensors: SavedTensors) -> pd.DataFrame:
    """Return the table `saved`."""
    columns = {**vars(tensors), "at_peak": tensors.held_at(facts.op_at_peak)}
    return table("saved", columns, index=pd.RangeIndex(len(tensors), name="pack"))


def step_of(facts: Facts, ops: IntArray, start_ns: IntArray) -> IntArray:
    """Return the number of the step of each op, by the op's number and the time at which it started."""
    if facts.capture.rows("step_curve"):
        return facts.steps.at(start_ns)
    recorded = facts.capture.tables["steps"]
    marks = recorded["op"][facts.strings[recorded["name"]] == MARK]
    return np.searchsorted(marks, ops, side="right")


def steps(facts: Facts) -> pd.DataFrame:
    """Return the table `steps`: the stretches between the marks, the last one ending with the block."""
    found, curve, starts_ns = facts.steps, facts.curve, facts.capture.tables["ops"]["start_ns"]
    peak_op = np.full(len(found), NONE, dtype=np.int64)
    for step in np.flatnonzero(found.recorded).tolist():
        first, after = events_between(curve, int(found.start_ns[step]), int(found.end_ns[step]))
        peak_op[step] = facts.op_at(first + int(np.argmax(curve.live_bytes[first:after])))
    columns = {
        "start_op": np.searchsorted(starts_ns, found.start_ns),
        "end_op": np.searchsorted(starts_ns, found.end_ns),
        "start_ns": facts.since_start(found.start_ns),
        "duration_ns": found.end_ns - found.start_ns,
        "peak_bytes": found.peak_bytes,
        "peak_op": peak_op,
        "floor_bytes": found.floor_bytes,
        "end_live_bytes": found.end_live_bytes,
        "recorded": found.recorded,
    }
    return table("steps", columns, index=pd.RangeIndex(len(found), name="step"))


def ways(found: list[Way]) -> pd.DataFrame:
    """Return the table `ways`.

    Args:
        found: the changes, in the order of the rows.
    """
    names = ("kind", "peak_bytes", "time_ratio", "basis", "decision", "lines", "modules")
    columns = {name: [getattr(way, name) for way in found] for name in names}
    return table("ways", {"way": [way.text for way in found], **columns})


def process(facts: Facts) -> pd.DataFrame:
    """Return the table `process`.

    Args:
        facts: the facts about the host.
    """
    recorded = {name: np.asarray(values) for name, values in facts.capture.tables["process_parts"].items()}
    if facts.capture.rows("step_curve"):  # the curve lacks the tensors that a step made and freed unrecorded
        known = ~facts.steps.is_unrecorded(recorded["time_ns"])
        recorded = {name: values[known] for name, values in recorded.items()}
    event = np.searchsorted(facts.curve.time_ns, recorded["time_ns"], side="right") - 1
    rest = recorded["rss_bytes"].copy()
    columns: dict[str, Any] = {"rss_bytes": recorded["rss_bytes"]}
    # The exact figures come first. Live bytes and free pieces may lie in untouched pages, which are not in RAM. So each
    # part gets at most the bytes that the parts before it left.
    for name, nbytes in (
        ("file_bytes", recorded["file_bytes"]),
        ("python_bytes", recorded["python_bytes"]),
        ("python_free_bytes", recorded["python_free_bytes"]),
        ("tensor_bytes", facts.curve.live_bytes[np.maximum(event, 0)]),
        ("malloc_free_bytes", recorded["malloc_free_bytes"]),
    ):
        columns[name] = np.clip(nbytes, 0, rest)
        rest -= columns[name]
    entry_bytes = np.minimum(rest[:1], rest)
    other_bytes = rest - entry_bytes
    return table(
        "process",
        {
            **columns,
            "time_ns": facts.since_start(recorded["time_ns"]),
            "entry_bytes": entry_bytes,
            "other_bytes": other_bytes,
            "coverage_ratio": 1 - other_bytes / np.maximum(recorded["rss_bytes"], 1),
        },
    )
