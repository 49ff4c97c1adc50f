"""The rows of a recording of which some steps are left out after they ran.

A step that is left out takes its ops with it, and all that is said of them. What it made and left alive waits: if it is
alive in the next step that is kept it stays, as memory of which no op is known. The rest is numbered anew, so that the
numbers of what is kept have no gaps: the schema says which columns refer to what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE, ORIGINS, RECORDED_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memwatch.capture.packed import IntArray
    from memwatch.capture.schema import Reference

_OF_OPS: Final = frozenset(
    {
        "ops", "nodes", "views", "uses", "packs", "calls", "compiled_calls", "compiled_nodes", "recomputes",
        "recomputed", "steps", "holders", "arguments", "operands",
    }
)  # fmt: skip
"""Tables that tell what ops did: a step that is left out leaves none of their rows."""
_BIRTHS: Final = RECORDED_BY_NAME["births"].names
_STORAGE, _OP, _ORIGIN = map(_BIRTHS.index, ("storage", "op", "origin"))
_IN_OP: Final = RECORDED_BY_NAME["role_looks"].names.index("in_op")
_NO_BIRTHS: Final = np.zeros((0, len(_BIRTHS)), dtype=np.int64)
_OF_STORAGES: Final = frozenset({"roles", "role_ends", "resizes", "lifts"})
"""Tables that tell of one storage each, in the first column."""
_FEW: Final = 1000
_BASELINE: Final = ORIGINS.index("baseline")


class _Numbers:
    """Numbers of rows, of which some stretches are left out.

    Attributes:
        recorded: how many there were.
        kept: how many of them are in the capture.
    """

    def __init__(self) -> None:
        self.recorded = self.kept = 0
        self._starts, self._ends, self._shifts = [0], [0], [0]

    def end(self, recorded: int, *, kept: bool) -> None:
        """End a stretch."""
        count = recorded - self.recorded
        if kept and count:
            shift = self.recorded - self.kept
            if self._shifts[-1] == shift:
                self._ends[-1] = recorded
            else:
                self._starts.append(self.recorded)
                self._ends.append(recorded)
                self._shifts.append(shift)
            self.kept += count
        self.recorded = recorded

    def of(self, values: IntArray, *, is_count: bool) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return new numbers, and for which there is one; a count has one always."""
        starts, ends, shifts = (
            np.array(each, dtype=np.int64) for each in (self._starts, self._ends, self._shifts)
        )
        place = np.maximum(np.searchsorted(starts, values, side="right") - 1, 0)
        within = (values >= starts[place]) & (values < ends[place])
        bounded = np.minimum(values, ends[place]) if is_count else values
        return bounded - shifts[place], np.ones(len(values), bool) if is_count else within


class KeptRows:
    """Leave steps out of rows, and number what stays anew."""

    def __init__(self) -> None:
        self._ops, self._packs = _Numbers(), _Numbers()
        self._storages: dict[int, int] = {}
        self._storage_count = 0
        self._is_whole = True
        self._most_storages = _FEW
        self._waiting: dict[str, IntArray] = {}

    def op(self, op: int) -> int:
        """Return how many of the ops before an op are kept."""
        return int(self._ops.of(np.array([op]), is_count=True)[0][0])

    def sift(
        self, rows: dict[str, IntArray], ops: int, alive: Iterable[int], *, keep: bool
    ) -> dict[str, IntArray]:
        """Return the rows to write of those that a step, or a part of it, has appended.

        Args:
            rows: rows by table.
            ops: how many ops have started.
            alive: the storages that are alive, by the recorder's numbers, at least those of these rows.
            keep: whether the step stays.
        """
        if keep and self._is_whole:  # nothing was ever left out: every number is its own
            self._note_whole(rows, ops)
            return rows
        if self._is_whole:
            self._is_whole = False
            self._storages = {number: number for number in range(self._storage_count)}
        packs = rows.get("packs")
        self._ops.end(ops, kept=keep)
        last_pack = self._packs.recorded if packs is None or not len(packs) else int(packs[:, 0].max()) + 1
        self._packs.end(last_pack, kept=keep)
        rows = self._with_waiting(rows, frozenset(alive), keep=keep)
        kept = {
            name: self._renumbered(name, table) for name, table in rows.items() if keep or name not in _OF_OPS
        }
        for storage in rows["deaths"][:, 0].tolist() if "deaths" in rows else ():
            self._storages.pop(storage, None)
        return kept

    def _with_waiting(
        self, rows: dict[str, IntArray], alive: frozenset[int], *, keep: bool
    ) -> dict[str, IntArray]:
        """Return the rows to number, with those that waited or without those that wait on."""
        waited, self._waiting = self._waiting, {}
        if not keep:
            if "role_looks" in rows:  # the op amid which it was is left out
                rows["role_looks"][:, _IN_OP] = 0
            births = rows.pop("births", _NO_BIRTHS).copy()
            births[:, _OP], births[:, _ORIGIN] = NONE, _BASELINE
            waited = together(waited, {"births": births[np.isin(births[:, _STORAGE], list(alive))]})
            made = waited["births"][:, _STORAGE]
            for name in _OF_STORAGES & rows.keys():
                waits = np.isin(rows[name][:, 0], made)
                waited = together(waited, {name: rows[name][waits]})
                rows[name] = rows[name][~waits]
            lives = frozenset(made.tolist()) & alive
            self._waiting = {name: table[np.isin(table[:, 0], list(lives))] for name, table in waited.items()}
            return rows
        rows = together(waited, rows)
        self._number(rows.get("births", _NO_BIRTHS))
        return rows

    @property
    def first_waiting(self) -> int | None:
        """The first storage that waits, by the recorder's number."""
        births = self._waiting.get("births", _NO_BIRTHS)
        return int(births[:, _STORAGE].min()) if len(births) else None

    def forget_all_but(self, alive: Iterable[int]) -> None:
        """Forget the storages that are gone: some die without a row.

        Args:
            alive: the storages that are alive; it is asked for only now and then.
        """
        if len(self._storages) > self._most_storages:
            known = frozenset(alive)
            self._storages = {old: new for old, new in self._storages.items() if old in known}
            self._most_storages = 2 * len(self._storages) + _FEW

    def _note_whole(self, rows: dict[str, IntArray], ops: int) -> None:
        self._ops.end(ops, kept=True)
        packs, births = rows.get("packs", ()), rows.get("births", ())
        self._packs.end(self._packs.recorded + len(packs), kept=True)
        self._storage_count += len(births)

    def _number(self, births: IntArray) -> None:
        for storage in np.sort(births[:, _STORAGE]).tolist():
            self._storages[storage] = self._storage_count
            self._storage_count += 1

    def _renumbered(self, name: str, table: IntArray) -> IntArray:
        """Return the rows whose numbers all refer to what is kept, with the numbers that it has."""
        table, stays = table.copy(), np.ones(len(table), dtype=bool)
        for index, column in enumerate(RECORDED_BY_NAME[name].columns):
            if column.refers is None or column.refers.to not in ("ops", "packs", "births"):
                continue
            values, known = self._new(column.refers, table[:, index])
            is_none = table[:, index] == NONE
            table[:, index] = np.where(known & ~is_none, values, NONE)
            stays &= known | is_none if not column.refers.or_none else True
        return table[stays]

    def _new(self, refers: Reference, values: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        if refers.to == "births":
            found = np.array([self._storages.get(value, NONE) for value in values.tolist()], dtype=np.int64)
            return found, found != NONE
        numbers = self._ops if refers.to == "ops" else self._packs
        return numbers.of(values, is_count=refers.is_count)


def together(first: dict[str, IntArray], then: dict[str, IntArray]) -> dict[str, IntArray]:
    """Return the rows of both by table."""
    names = {**first, **then}
    return {name: np.concatenate([each[name] for each in (first, then) if name in each]) for name in names}
