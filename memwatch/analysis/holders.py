"""Holders: who kept each piece of memory alive at an instant, in words.

A role names its holder by itself, autograd's saved tensors are known from their packs, and the looks of the
recorder name the variables of running calls. What is left is held by C++ alone, or was not found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.lives import BASELINE, WORKSPACE
from memwatch.capture.schema import NONE, PHASES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.frames import Frames
    from memwatch.capture.packed import IntArray

_STACK: Final = "evaluation stack"
_SMALL_RATIO: Final = 0.001
_TOO_SMALL: Final = "not looked for: it is less than 0.1 % of the increase"
_ELSEWHERE: Final = (
    "C++, or what no running call reaches; made where no op was recorded",
    "C++, or what no running call reaches; made before the block",
)


@dataclass(frozen=True)
class Holder:
    """One holder of a piece of memory: its kind, itself in words, the line to edit, the retention path."""

    kind: str
    words: str
    site: str
    path: str
    owner: int = NONE

    @property
    def foreign(self) -> bool:
        """Whether the holder is a variable of torch's or an installed package's code, which no user edits."""
        return self.owner > CodeOwner.PROGRAM


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    @cached_property
    def _looks(self) -> tuple[dict[int, list[int]], IntArray, IntArray]:
        """Rows of the recorded table by storage, the numbers of the looks and the op before which each was."""
        table = self._frames.capture.tables["holders"]
        rows: dict[int, list[int]] = {}
        for row, storage in enumerate(table["storage"].tolist()):
            rows.setdefault(storage, []).append(row)
        looks, first = np.unique(table["snapshot"], return_index=True)
        return rows, looks, table["op"][first]

    def variables(self, life: int, op: int) -> list[Holder]:
        """Give the variables that held a life in the look nearest to an op, the program's own and innermost first."""
        return [holder for holder in self._seen(life, op) if holder.kind != "graph"]

    def graph_roots(self, life: int, op: int) -> list[Holder]:
        """Give the variables whose autograd graph kept a life, in the look nearest to an op that saw one.

        Where no look was while it was saved, the graph of another storage that the same calls made tells.
        """
        table = self._frames.capture.tables["holders"]
        by_storage, _, _ = self._looks
        own = np.array(by_storage.get(int(self._frames.lives.storage[life]), []), dtype=np.int64)
        for rows in (own, self._twin_rows(life)):
            graphs = rows[table["kind"][rows] == self._graph_kind]
            if len(graphs):
                nearest = graphs[np.argmin(np.abs(table["op"][graphs] - op))]
                return self._read(graphs[self._told_with(graphs, nearest)], life, op)
        return []

    def _told_with(self, rows: IntArray, row: int) -> NDArray[np.bool_]:
        """Tell which rows are of the same look at the same storage as one of them."""
        table = self._frames.capture.tables["holders"]
        same: NDArray[np.bool_] = (table["snapshot"][rows] == table["snapshot"][row]) & (
            table["storage"][rows] == table["storage"][row]
        )
        return same

    def _twin_rows(self, life: int) -> IntArray:
        """Give the rows about storages of the same size that the same calls made."""
        made, nothing = int(self._frames.lives.op[life]), np.zeros(0, dtype=np.int64)
        if made == NONE:
            return nothing
        stack = int(self._frames.capture.tables["ops"]["stack"][made])
        return self._twins.get((stack, int(self._frames.lives.nbytes[life])), nothing)

    @cached_property
    def _graph_kind(self) -> int:
        strings = list(self._frames.strings)
        return strings.index("graph") if "graph" in strings else NONE

    def _seen(self, life: int, op: int) -> list[Holder]:
        table = self._frames.capture.tables["holders"]
        by_storage, looks, look_ops = self._looks
        rows = by_storage.get(int(self._frames.lives.storage[life]), [])
        alive, telling = self._telling_looks(life, op)
        chosen = table["snapshot"][rows]
        if rows and self._frames.lives.nbytes[life] <= _SMALL_RATIO * self._frames.curve.peak_increase_bytes:
            nearest = chosen[
                np.argmin(np.abs(table["op"][rows] - op))
            ]  # most looks leave out what is so small
        else:
            known = telling if telling.any() else alive
            if not telling.any() and (twin := self._seen_of_twin(life, op, seen=bool(alive.any()))):
                return twin
            if not rows or not known.any():
                return self._asked_of_twin(life, op)
            nearest = looks[known][np.argmin(np.abs(look_ops[known] - op))]
        return self._read([row for row, look in zip(rows, chosen, strict=True) if look == nearest], life, op)

    def _telling_looks(self, life: int, op: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Give which looks were while a life lived, and which of them in the same phase of it as an op.

        Who holds a value changes with its use: what waited in a list lies in a variable then. A storage is
        unknown to the look in the middle of which it was born.
        """
        frames, (_, _, look_ops) = self._frames, self._looks
        death = int(frames.lives.death_event[life])
        end = int(frames.timeline["op"].iloc[death]) if death != NONE else len(frames.ops)
        made = int(frames.lives.op[life])
        alive = (look_ops > made + 1 if made != NONE else look_ops >= 0) & (look_ops <= end)
        first, last = (int(bound[life]) for bound in frames.use_bounds)
        if first == NONE:
            return alive, alive
        if op < first:
            return alive, alive & (look_ops <= first)
        return alive, alive & (look_ops > last + 1 if op > last else look_ops > first)

    def _read(self, rows: IntArray | list[int], life: int, op: int) -> list[Holder]:
        """Read rows of the recorded table as the holders of a life."""
        table, text = self._frames.capture.tables["holders"], self._frames.capture.text
        kinds, words, sites, paths = (text(table[name][rows]) for name in ("kind", "holder", "site", "path"))
        owners = table["owner"][rows].tolist()
        found = dict.fromkeys(Holder(*row) for row in zip(kinds, words, sites, paths, owners, strict=True))
        placed = [self._on_stack(holder, life, op) if holder.kind == _STACK else holder for holder in found]
        return sorted(placed, key=lambda holder: holder.foreign)

    @cached_property
    def _asked(self) -> dict[int, Holder]:
        """What gc told of unnamed storages, by the stack that made them: it is not asked for every one."""
        table, lives = self._frames.capture.tables["holders"], self._frames.lives
        text, stack = self._frames.capture.text, self._frames.capture.tables["ops"]["stack"]
        rows = np.flatnonzero(
            np.isin(table["kind"], [n for n, t in enumerate(self._frames.strings) if t == _STACK])
        )
        made = lives.op[table["storage"][rows]]
        columns = [text(table[name][rows]) for name in ("kind", "holder", "site", "path")]
        holders = map(Holder, *columns, table["owner"][rows].tolist())
        return {
            int(stack[op]): holder
            for op, holder in zip(made.tolist(), holders, strict=True)
            if op != NONE and stack[op] != NONE
        }

    @cached_property
    def _twins(self) -> dict[tuple[int, int], IntArray]:
        """Rows of the recorded table by the stack that made the storage and its size, in the order of the ops."""
        table, lives = self._frames.capture.tables["holders"], self._frames.lives
        made = lives.op[table["storage"]]
        rows = np.flatnonzero(made != NONE)
        stacks = self._frames.capture.tables["ops"]["stack"][made[rows]].tolist()
        found: dict[tuple[int, int], list[int]] = {}
        for row, stack, nbytes in zip(
            rows.tolist(), stacks, lives.nbytes[table["storage"][rows]].tolist(), strict=True
        ):
            if stack != NONE:
                found.setdefault((stack, nbytes), []).append(row)
        return {key: np.array(rows) for key, rows in found.items()}

    def _seen_of_twin(self, life: int, op: int, *, seen: bool) -> list[Holder]:
        """Give the holders of another storage that the same calls made, where no look could have seen this one.

        Looks are rare: of the items that a loop puts into a list some are born and gone between two. A look
        that saw one of them at the same age speaks for these too.

        Args:
            life: the piece of memory.
            op: the op while which it is held.
            seen: whether there was a look at it in another phase; that is better than another's, but for lag.
        """
        lives, table = self._frames.lives, self._frames.capture.tables["holders"]
        made, (first, _) = int(lives.op[life]), self._frames.use_bounds
        if made == NONE or (seen and op >= first[life]):
            return []
        rows = self._twin_rows(life)
        rows = rows[table["kind"][rows] != self._graph_kind]
        if not len(rows):
            return []
        age = table["op"][rows] - lives.op[table["storage"][rows]]
        nearest = rows[np.argmin(np.abs(age - (op - made)))]
        return self._read(rows[self._told_with(rows, nearest)], life, op)

    def _asked_of_twin(self, life: int, op: int) -> list[Holder]:
        """Give the holder of another storage that the same calls made, where gc was asked for that one only."""
        made = int(self._frames.lives.op[life])
        if made == NONE:
            return []
        holder = self._asked.get(int(self._frames.capture.tables["ops"]["stack"][made]))
        return [self._on_stack(holder, life, op)] if holder is not None else []

    def _on_stack(self, holder: Holder, life: int, op: int) -> Holder:
        """Say on whose evaluation stack a value lies: of the innermost call that made it and runs still."""
        call = self.common_call(life, op)
        if call is None:
            return holder
        file, line, function = call
        words = f"{holder.words}, on the evaluation stack of `{function}`"
        return Holder(holder.kind, words, f"{file}:{line}", holder.path, self._frames.owner_of_file[file])

    def common_call(self, life: int, op: int) -> tuple[str, int, str] | None:
        """Give file, line and function of the program's innermost call that ran at birth and while an op ran."""
        frames = self._frames
        if op < 0 or int(frames.lives.op[life]) == NONE:
            return None
        stack = frames.capture.tables["ops"]["stack"]
        birth, now = (frames.stack(int(stack[number]))[::-1] for number in (int(frames.lives.op[life]), op))
        found = loop = None
        for (file, line, function, user), (file_now, line_now, function_now, _) in zip(
            birth, now, strict=False
        ):
            if (file, function) != (file_now, function_now):
                return found
            if user:
                found = file, line_now, _spoken(function)
                loop = found if function.endswith("comp>") else loop
            if line != line_now:
                return found
        return loop or found  # the same calls once more: what the first of them made is held further out

    @cached_property
    def _packs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Packs by storage: (pack, op before which it was saved, op before which it was released)."""
        saved = self._frames.saved
        found: dict[int, list[tuple[int, int, int]]] = {}
        columns = zip(
            saved["storage"].tolist(), saved["saved_op"].tolist(), saved["released_op"].tolist(), strict=True
        )
        for pack, (storage, start, end) in enumerate(columns):
            if storage != NONE:
                found.setdefault(storage, []).append((pack, start, end))
        return found

    def packs_at(self, life: int, op: int) -> list[int]:
        """Give the saved tensors through which autograd held a life while an op ran."""
        packs = self._packs.get(int(self._frames.lives.storage[life]), [])
        return [pack for pack, start, end in packs if start <= op + 1 and (end == NONE or end > op)]

    def describe(self, lives: Sequence[int], op: int) -> list[Holder]:
        """Name one holder for each life, as seen while an op ran."""
        storages = self._frames.storages
        category, name = storages["category"].to_numpy(), storages["name"].to_numpy()
        return [self._one(life, op, str(category[life]), str(name[life])) for life in lives]

    def _one(self, life: int, op: int, category: str, name: str) -> Holder:
        if category in ("parameter", "buffer"):
            return Holder(f"module {category}", f"{category} `{name}`", "", "")
        if category == "optimizer state":
            return Holder(category, f"optimizer state `{name}`", "", "")
        if category == "gradient":
            return Holder("attribute", f"attribute .grad of `{name.removeprefix('grad of ')}`", "", "")
        packs = self.packs_at(life, op)
        if packs:
            return self._saved(life, op, packs[0])
        variables = self.variables(life, op)
        return variables[0] if variables else self._unnamed(life, op)

    def _saved(self, life: int, op: int, pack: int) -> Holder:
        saved = self._frames.saved
        node, module, line = (str(saved[column].iloc[pack]) for column in ("op_name", "module", "line"))
        behalf = f" on behalf of `{module}`" if module else ""
        roots = self.graph_roots(life, op)
        path = roots[0].path if roots else ""
        return Holder("autograd node", f"saved for the backward of {node or 'an op'}{behalf}", line, path)

    def _unnamed(self, life: int, op: int) -> Holder:
        """Explain what no variable held: a kernel's workspace, a gradient in flight, an unnamed value of a call."""
        frames, lives = self._frames, self._frames.lives
        storages = frames.storages
        born = int(lives.op[life])
        made_by, line = str(storages["op_name"].iloc[life]), str(storages["line"].iloc[life])
        if int(lives.origin[life]) == WORKSPACE:
            return Holder("kernel", f"the kernel of {made_by}", line, "")
        if born == op and op != NONE:
            return Holder("running op", f"the running op {made_by}, whose result it is", line, "")
        if int(lives.nbytes[life]) <= _SMALL_RATIO * frames.curve.peak_increase_bytes:
            return Holder("not looked for", _TOO_SMALL, line, "")
        if born == NONE:
            return Holder("elsewhere", _ELSEWHERE[int(lives.origin[life]) == BASELINE], line, "")
        module = str(storages["module"].iloc[life])
        words = (
            f"C++ code that runs, or an unnamed value, made by {made_by}",
            f"gradient in flight in the autograd engine, made by {made_by} in the backward"
            + (f" of `{module}`" if module else ""),
            f"a temporary of the optimizer's step, made by {made_by}",
        )
        phase = int(frames.capture.tables["ops"]["phase"][born])
        call = self.common_call(life, op) if PHASES[phase] == "forward" else None
        if call is None:
            return Holder("C++ only", words[phase], line, "")
        unnamed = f"an unnamed value of the running call of `{call[2]}` or of C++ that it called"
        return Holder(_STACK, f"{unnamed}, made by {made_by}", f"{call[0]}:{call[1]}", "")


def _spoken(function: str) -> str:
    """Give the name of a function as its `def` has it; a comprehension is told under the function around it."""
    *around, name = function.replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(("comp>", "genexpr>")) and around else name
