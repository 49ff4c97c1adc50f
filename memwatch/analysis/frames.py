"""The derived tables of the schema as DataFrames, each computed once, when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memwatch.analysis import biographies, findings
from memwatch.analysis import modules as module_table
from memwatch.analysis.biographies import PHASE_NAMES, Biographies
from memwatch.analysis.categories import categorise
from memwatch.analysis.holders import Holders
from memwatch.analysis.lives import UNOBSERVED, WORKSPACE, Curve, Lives, join
from memwatch.analysis.places import Places, find_places
from memwatch.capture.schema import ACCESSES, DERIVED_BY_NAME, NONE, ORIGINS, PANDAS_DTYPE, PHASES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.analysis.findings import Finding
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_ORIGINS = (*ORIGINS, "workspace")


def table(name: str, columns: dict[str, Any], index: Any = None) -> pd.DataFrame:
    """Make a DataFrame with exactly the columns and dtypes that the schema gives table `name`."""
    wanted = DERIVED_BY_NAME[name].columns
    frame: pd.DataFrame = pd.DataFrame(
        {
            column.name: pd.Series(columns[column.name], dtype=PANDAS_DTYPE[column.kind], index=index)
            for column in wanted
        },
        index=index,
    )
    return frame


class Frames:
    """Everything that can be read off one capture."""

    def __init__(self, capture: Capture) -> None:
        self.source = capture
        self._start_ns = int(capture.meta.get("start_ns", 0))

    @cached_property
    def _joined(self) -> tuple[Capture, Lives, Curve]:
        return join(self.source)

    @property
    def capture(self) -> Capture:
        """The recorded tables, with the storages that proved to be one told as one."""
        return self._joined[0]

    @property
    def lives(self) -> Lives:
        """Every piece of memory, as columns."""
        return self._joined[1]

    @property
    def curve(self) -> Curve:
        """The live curve, as columns."""
        return self._joined[2]

    @cached_property
    def places(self) -> Places:
        """Lines and modules of ops and stacks."""
        return find_places(self.capture)

    @cached_property
    def strings(self) -> np.ndarray[Any, Any]:
        """The interned texts, as an object array with empty text at the end, so that -1 finds it."""
        return np.array([*self.capture.strings, ""], dtype=object)

    @cached_property
    def _stack_rows(self) -> tuple[IntArray, IntArray]:
        """Rows of the recorded stacks in order of stack and depth, and the stack of each."""
        stacks = self.capture.tables["stacks"]
        order = np.lexsort((stacks["depth"], stacks["stack"]))
        return order, stacks["stack"][order]

    def stack(self, stack: int) -> list[tuple[str, int, str, bool]]:
        """Give the frames of a call stack, innermost first: file, line, function, whether it is the program's own."""
        order, numbers = self._stack_rows
        rows = order[np.searchsorted(numbers, stack) : np.searchsorted(numbers, stack, side="right")]
        stacks, text = self.capture.tables["stacks"], self.capture.text
        return list(
            zip(
                text(stacks["file"][rows]),
                stacks["line"][rows].tolist(),
                text(stacks["function"][rows]),
                (stacks["owner"][rows] <= CodeOwner.INSTALLED).tolist(),
                strict=True,
            )
        )

    @cached_property
    def owner_of_file(self) -> dict[str, int]:
        """Whose code each file of a recorded stack is, as an index into OWNERS."""
        stacks = self.capture.tables["stacks"]
        return dict(zip(self.capture.text(stacks["file"]), stacks["owner"].tolist(), strict=True))

    def _lines(self, stacks: IntArray) -> np.ndarray[Any, Any]:
        return np.array([*self.places.line_of_stack, ""], dtype=object)[stacks]

    def _since_start(self, time_ns: IntArray) -> IntArray:
        return np.where(time_ns == NONE, NONE, np.maximum(time_ns - self._start_ns, 0))

    @cached_property
    def uses(self) -> pd.DataFrame:
        """The table `uses`."""
        rows = self.capture.tables["uses"]
        return table(
            "uses",
            {
                "op": rows["op"],
                "storage": rows["storage"],
                "access": np.array(ACCESSES, dtype=object)[rows["access"]],
            },
        )

    @cached_property
    def use_bounds(self) -> tuple[IntArray, IntArray]:
        """First and last op that used each life (not the one that made it), -1 if none."""
        count = len(self.lives.nbytes)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE, dtype=np.int64)
        uses, packs, unpacks = (self.capture.tables[name] for name in ("uses", "packs", "unpacks"))
        reads = uses["access"] != ACCESSES.index("output")
        storages, ops = [uses["storage"][reads]], [uses["op"][reads]]
        if len(unpacks["pack"]):
            storage_of = np.full(int(packs["pack"].max(initial=-1)) + 1, NONE, dtype=np.int64)
            storage_of[packs["pack"]] = packs["storage"]
            storage = storage_of[unpacks["pack"]]
            read = (unpacks["released"] == 0) & (storage != NONE)
            storages.append(storage[read])
            ops.append(np.minimum(unpacks["op"][read], self.capture.rows("ops") - 1))
        np.minimum.at(first, np.concatenate(storages), np.concatenate(ops))
        np.maximum.at(last, np.concatenate(storages), np.concatenate(ops))
        later = (self.lives.storage != NONE) & (np.arange(count) >= self.lives.named)
        first[later], last[later] = first[self.lives.storage[later]], last[self.lives.storage[later]]
        return np.where(last == NONE, NONE, first), last

    @cached_property
    def biographies(self) -> Biographies:
        """The four phases of every life."""
        return biographies.tell(self.capture, self.lives, self.curve, self.use_bounds)

    @cached_property
    def holders(self) -> Holders:
        """Who held what."""
        return Holders(self)

    @cached_property
    def findings(self) -> list[Finding]:
        """What would lower the peak, largest first."""
        return findings.find(self)

    @cached_property
    def storages(self) -> pd.DataFrame:
        """The table `storages`."""
        lives, ops, places = self.lives, self.capture.tables["ops"], self.places
        category, rule, name = categorise(self.capture, lives)
        op = lives.op
        some = (op != NONE) if len(ops["op"]) else np.zeros(len(op), dtype=bool)
        safe = np.where(some, op, 0)
        op_name = np.full(len(op), "", dtype=object)
        stack, module = np.full(len(op), NONE, dtype=np.int64), np.full(len(op), NONE, dtype=np.int64)
        if some.any():
            op_name[some] = self.strings[ops["name"][safe[some]]]
            stack[some], module[some] = places.stack_of_op[safe[some]], places.module_of_op[safe[some]]
        line = self._lines(stack)
        module_name = np.array([*places.module_names, ""], dtype=object)[module]
        self._own_modules(category, name, module_name)
        first, last = self.use_bounds
        shape = np.full(len(op), NONE, dtype=np.int64)
        births = self.capture.tables["births"]
        shape[births["storage"]] = births["shape"]
        later = (lives.storage != NONE) & (np.arange(len(op)) >= lives.named)
        shape[later] = shape[lives.storage[later]]
        return table(
            "storages",
            {
                "nbytes": lives.nbytes,
                "device": self.strings[lives.device],
                "category": category,
                "rule": rule,
                "name": [_name(*row) for row in zip(name, op_name, line, strict=True)],
                "tensor": self.strings[shape],
                "origin": np.array(_ORIGINS, dtype=object)[lives.origin],
                "module": module_name,
                "op": op,
                "op_name": op_name,
                "line": line,
                "birth_event": lives.birth_event,
                "death_event": lives.death_event,
                "birth_ns": self._since_start(lives.birth_ns),
                "death_ns": self._since_start(lives.death_ns),
                "lag_ns": self.biographies.lag_ns,
                "use_ns": self.biographies.use_ns,
                "drag_ns": self.biographies.drag_ns,
                "void_ns": self.biographies.void_ns,
                "first_use_op": first,
                "last_use_op": last,
                "address": lives.address,
                "stack": stack,
                "counted": lives.counted,
            },
            index=pd.RangeIndex(len(op), name="storage"),
        )

    def _own_modules(self, category: list[str], name: list[str], module_name: np.ndarray[Any, Any]) -> None:
        """Tell parameters, buffers, gradients and state under the module that owns the parameter."""
        known = set(self.places.module_names)
        roots = [
            label
            for label, parent in zip(
                self.places.module_names, self.capture.tables["modules"]["parent"].tolist(), strict=True
            )
            if parent == NONE
        ]
        for life, kind in enumerate(category):
            if kind in ("parameter", "buffer", "gradient", "optimizer state"):
                owner = (
                    name[life]
                    .removeprefix("grad of ")
                    .rpartition("[")[2]
                    .removesuffix("]")
                    .rpartition(".")[0]
                )
                module_name[life] = owner if owner in known else (roots[0] if len(roots) == 1 else "")

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """The table `timeline`."""
        curve, ops = self.curve, self.capture.tables["ops"]
        op = np.searchsorted(ops["start_ns"], curve.time_ns, side="right") - 1
        return table(
            "timeline",
            {
                "time_ns": self._since_start(curve.time_ns),
                "op": op,
                "storage": curve.life,
                "delta_bytes": curve.delta_bytes,
                "live_bytes": curve.live_bytes,
            },
        )

    def live_at(self, event: int) -> pd.DataFrame:
        """Give the rows of `storages` that were alive just after timeline row `event`."""
        storages = self.storages
        born = storages["counted"] & (storages["birth_event"] <= event)
        alive = born & ((storages["death_event"] == NONE) | (storages["death_event"] > event))
        rows: pd.DataFrame = storages[alive]
        return rows

    @cached_property
    def at_peak(self) -> pd.DataFrame:
        """The table `at_peak`."""
        rows = self.live_at(self.curve.peak_event).sort_values("nbytes", ascending=False, kind="stable")
        peak = max(int(self.curve.live_bytes[self.curve.peak_event]), 1)
        columns = {column: rows[column] for column in rows.columns}
        columns["share_ratio"] = rows["nbytes"] / peak
        event = self.curve.peak_event
        columns["phase"] = np.array(PHASE_NAMES, dtype=object)[self.biographies.phase_at(event)][rows.index]
        held = self.holders.describe(rows.index.tolist(), int(self.timeline["op"].iloc[event]))
        columns["holder"] = [holder.words for holder in held]
        columns["holder_kind"] = [holder.kind for holder in held]
        columns["path"] = [holder.path for holder in held]
        return table("at_peak", columns, index=rows.index)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """The table `ops`."""
        ops, places = self.capture.tables["ops"], self.places
        count = len(ops["op"])
        marks = self.step_marks
        born = np.zeros(count, dtype=np.int64)
        made = (self.lives.op != NONE) & (self.lives.origin != WORKSPACE) & (self.lives.origin != UNOBSERVED)
        made &= self.lives.op < count  # a program that was killed may leave a birth without its op
        np.add.at(born, self.lives.op[made], self.lives.nbytes[made])
        live, peak, workspace = self._live_of_ops(count)
        classes = np.array([*places.module_classes, ""], dtype=object)
        return table(
            "ops",
            {
                "name": self.strings[ops["name"]],
                "phase": np.array(PHASES, dtype=object)[ops["phase"]],
                "module": np.array([*places.module_names, ""], dtype=object)[places.module_of_op],
                "module_class": classes[places.module_of_op],
                "line": self._lines(ops["stack"]),
                "function": np.array([*places.function_of_stack, ""], dtype=object)[ops["stack"]],
                "stack": ops["stack"],
                "step": np.searchsorted(marks, ops["op"], side="right"),
                "start_ns": self._since_start(ops["start_ns"]),
                "duration_ns": ops["end_ns"] - ops["start_ns"],
                "born_bytes": born,
                "workspace_bytes": workspace,
                "live_bytes": live,
                "peak_bytes": peak,
                "failed": ops["failed"] == 1,
            },
            index=pd.RangeIndex(count, name="op"),
        )

    def _live_of_ops(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Give, per op, live bytes at its end, the most while it ran, and its most workspace."""
        ops, curve = self.capture.tables["ops"], self.curve
        first = np.searchsorted(curve.time_ns, ops["start_ns"], side="left")
        after = np.searchsorted(curve.time_ns, ops["end_ns"], side="right")
        live = curve.live_bytes[np.maximum(after - 1, 0)]
        before = curve.live_bytes[np.maximum(first - 1, 0)]
        padded = np.append(curve.live_bytes, 0)
        bounds = np.column_stack([first, np.maximum(after, first)]).ravel()
        most = np.maximum.reduceat(padded, np.minimum(bounds, len(padded) - 1))[::2] if count else live
        peak = np.maximum(np.maximum(np.where(after > first, most, before), before), live)
        origin = np.append(
            self.lives.origin, UNOBSERVED
        )  # the last stands for the first event, which is no life's
        is_workspace = origin[curve.life] == WORKSPACE
        held = np.append(np.cumsum(np.where(is_workspace, curve.delta_bytes, 0)), 0)
        work = np.maximum.reduceat(held, np.minimum(bounds, len(held) - 1))[::2] if count else live
        return live, peak, np.where(after > first, np.maximum(work, 0), 0)

    @cached_property
    def step_marks(self) -> IntArray:
        """Numbers of the ops before which `prof.step()` was called."""
        steps = self.capture.tables["steps"]
        marks: IntArray = steps["op"][self.strings[steps["name"]] == "step"]
        return marks

    @cached_property
    def modules(self) -> pd.DataFrame:
        """The table `modules`."""
        return module_table.modules(self)

    @cached_property
    def saved(self) -> pd.DataFrame:
        """The table `saved`."""
        return module_table.saved(self)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The table `steps`."""
        return module_table.steps(self)


def _name(role_name: str, op_name: str, line: str) -> str:
    if role_name:
        return role_name
    return " at ".join(part for part in (op_name, line) if part) or "made outside every recorded op"
