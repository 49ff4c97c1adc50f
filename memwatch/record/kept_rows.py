"""Rows and allocator events of a recording that keeps only some of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import NONE, ORIGINS, RECORDED_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memwatch.capture.columns import IntArray
    from memwatch.capture.schema import Reference

_OF_OPS: Final = frozenset(
    {
        "ops", "nodes", "views", "uses", "packs", "calls", "mode_changes", "compiled_calls", "compiled_nodes",
        "recomputes", "recomputed", "steps", "torch_runs", "holders", "arguments", "operands", "numbers",
    }
)  # fmt: skip
"""Tables about ops. A step that is left out has no rows in them."""
_BIRTHS: Final = RECORDED_BY_NAME["births"].names
_STORAGE, _OP, _ORIGIN = map(_BIRTHS.index, ("storage", "op", "origin"))
_IN_OP: Final = RECORDED_BY_NAME["role_looks"].names.index("in_op")
_NO_BIRTHS: Final = np.zeros((0, len(_BIRTHS)), dtype=np.int64)
_OF_STORAGES: Final = frozenset({"roles", "role_ends", "resizes", "lifts"})
"""Tables with a storage in the first column."""
_FEW: Final = 1000
"""Storages that the table of new numbers may have before it is first cleaned. A guess."""
_BASELINE: Final = ORIGINS.index("baseline")
_COLUMNS: Final = RECORDED_BY_NAME["allocator"].names
_TIME, _ADDRESS, _BYTES, _DEVICE = map(_COLUMNS.index, ("time_ns", "address", "nbytes", "device"))
_WRITTEN: Final = -1
"""The stretch of blocks whose birth is already in the capture."""
_WAITED: Final = -2
"""The stretch of waiting rows, if a recorded stretch follows."""
_NOWHERE: Final = 0
"""The address of a death at an unknown place. It counts, but gets no row."""


class _Numbers:
    """New numbers for rows, after some stretches of rows are left out.

    Attributes:
        recorded: how many rows there were.
        kept: how many of these are in the capture.
    """

    def __init__(self) -> None:
        self.recorded = self.kept = 0
        self._starts = [0]
        self._ends = [0]
        self._shifts = [0]

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
        """Return new numbers, and which values have one. A count always has one."""
        starts, ends, shifts = (
            np.array(each, dtype=np.int64) for each in (self._starts, self._ends, self._shifts)
        )
        place = np.maximum(np.searchsorted(starts, values, side="right") - 1, 0)
        within = (values >= starts[place]) & (values < ends[place])
        bounded = np.minimum(values, ends[place]) if is_count else values
        return bounded - shifts[place], np.ones(len(values), bool) if is_count else within


class KeptRows:
    """Leave steps out of the rows, and renumber the rest."""

    def __init__(self) -> None:
        self._ops = _Numbers()
        self._packs = _Numbers()
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
        """Select the rows to write from the new rows of a step, or of a part of it.

        Args:
            rows: rows by table.
            ops: how many ops have started.
            alive: the living storages, by the recorder's numbers; it must have all living storages of these rows.
            keep: whether the step stays.
        """
        if keep and self._is_whole:  # all rows were written so far, so all numbers stay
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
        """Return the rows to renumber. Add the rows that waited, or take out the rows that must wait."""
        waited = self._waiting
        self._waiting = {}
        if not keep:
            if "role_looks" in rows:  # the op during which it happened is left out
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
        """The first waiting storage, by the recorder's number."""
        births = self._waiting.get("births", _NO_BIRTHS)
        return int(births[:, _STORAGE].min()) if len(births) else None

    def forget_all_but(self, alive: Iterable[int]) -> None:
        """Forget dead storages, because some die without a row.

        Args:
            alive: the living storages. It is read only now and then.
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
        """Return the rows that refer only to kept rows, with their new numbers."""
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
    """Return the rows of both, by table."""
    names = {**first, **then}
    return {name: np.concatenate([each[name] for each in (first, then) if name in each]) for name in names}


class MeasuredEvents(NamedTuple):
    """New events, measured.

    Attributes:
        rows: rows of the table `allocator`, in order.
        live_bytes: live bytes on the device of each row after it.
        is_known: whether each is the birth of a block, or the free of a block with a known birth.
    """

    rows: IntArray
    live_bytes: IntArray
    is_known: NDArray[np.bool_]


class LiveEvents:
    """Measure the live bytes after each event, and leave out events that need not be kept.

    Attributes:
        live_bytes: live bytes of each device after the last measured event, by string id.
        highest_bytes: the highest live bytes so far, by string id of the device.
    """

    def __init__(self) -> None:
        self.live_bytes: dict[int, int] = {}
        self.highest_bytes: dict[int, int] = {}
        self._reporting_frees: set[int] = set()
        self._alive = self._waiting = _none()

    def enter(self, device: int, nbytes: int, *, reports_frees: bool) -> None:
        """Set the live bytes of a device at the beginning of the block.

        Args:
            device: string id of the device.
            nbytes: the live bytes.
            reports_frees: whether its allocator reported them. Then it also reports when they are freed.
        """
        self.live_bytes[device] = self.highest_bytes[device] = nbytes
        if reports_frees:
            self._reporting_frees.add(device)

    def frees_are_reported(self, devices: IntArray) -> NDArray[np.bool_]:
        """Return, for each device, whether the allocator reports frees of memory from before the block."""
        return np.isin(devices, list(self._reporting_frees))

    def measure(self, rows: IntArray) -> MeasuredEvents:
        """Return new events with the live bytes after each of them.

        Args:
            rows: rows of the table `allocator` in order. Deaths of storages from before the block are rows at address
                0.
        """
        blocks = self._blocks(rows)
        before, _ = _neighbours(blocks)
        nbytes = np.append(blocks[:, _BYTES], 0)
        earlier_bytes = nbytes[before[len(blocks) - len(rows) :]]
        follows_birth, is_birth = earlier_bytes > 0, rows[:, _BYTES] > 0
        is_known = is_birth | follows_birth
        is_of_entry = self.frees_are_reported(rows[:, _DEVICE]) | (rows[:, _ADDRESS] == _NOWHERE)
        change = np.where(is_birth | (is_of_entry & ~is_known), rows[:, _BYTES], 0)
        change -= np.where(follows_birth, earlier_bytes, 0)  # its free, or a free that was missed
        live = np.zeros(len(rows), dtype=np.int64)
        for device in np.unique(rows[:, _DEVICE]).tolist():
            here = rows[:, _DEVICE] == device
            live[here] = self.live_bytes.get(device, 0) + np.cumsum(change[here])
            self.live_bytes[device] = int(live[here][-1])
        return MeasuredEvents(rows, live, is_known | is_of_entry)

    def sift(self, measured: MeasuredEvents, bounds_ns: IntArray, is_left_out: NDArray[np.bool_]) -> IntArray:
        """Return the rows to keep: recorded stretches, and the rows of others that matter outside them.

        Rows of blocks that are still alive in an unfinished unrecorded stretch wait for the next call.

        Args:
            measured: the events since the last call.
            bounds_ns: the times between stretches, in order, shape (n,).
            is_left_out: whether each stretch is unrecorded, shape (n + 1,).
        """
        rows, written = self._blocks(measured.rows), len(self._alive)
        first = written + len(self._waiting)
        stretch = np.searchsorted(bounds_ns, measured.rows[:, _TIME], side="right")
        left_out = np.ones(len(rows), dtype=bool)
        left_out[:written], left_out[first:] = False, is_left_out[stretch]
        splits = self._new_peaks(measured, left_out[first:])
        part = np.full(len(rows), 0 if is_left_out[0] else _WAITED)
        part[:written] = _WRITTEN
        part[first:] = stretch + np.searchsorted(splits, np.arange(len(stretch)), side="left")
        before, after = _neighbours(rows)
        is_birth = rows[:, _BYTES] > 0
        # a block with a missed free ends at the next birth at its address: there may be several births before one free
        partner = np.where(is_birth, after, _first_births(before, is_birth)[before])
        has_partner = np.where(is_birth, after, before) >= 0
        kept = ~(left_out & has_partner & (part[partner] == part) & (is_birth | is_birth[partner]))
        kept[first:] &= (measured.is_known | ~left_out[first:]) & (measured.rows[:, _ADDRESS] != _NOWHERE)
        waits = kept & (part == len(bounds_ns) + len(splits)) & bool(is_left_out[-1])
        # as the file knows it, until its end is written
        lives = is_birth & kept & ((after < 0) | waits[after])
        self._alive = rows[lives & ~waits]
        self._waiting = rows[waits]
        kept[:written] = False  # these are in the capture
        written_now: IntArray = rows[kept & ~waits]
        return written_now

    def rest(self) -> IntArray:
        """Return the waiting rows, because the recording ends."""
        rest = self._waiting
        self._waiting = _none()
        return rest

    def _blocks(self, rows: IntArray) -> IntArray:
        return np.concatenate([self._alive, self._waiting, rows])

    def _new_peaks(self, measured: MeasuredEvents, left_out: NDArray[np.bool_]) -> IntArray:
        """Return the events of unrecorded stretches that set a new peak, and note the peaks."""
        found = []
        for device in np.unique(measured.rows[:, _DEVICE]).tolist():
            here = np.flatnonzero(measured.rows[:, _DEVICE] == device)
            top = int(here[np.argmax(measured.live_bytes[here])])
            if measured.live_bytes[top] > self.highest_bytes.get(device, 0):
                self.highest_bytes[device] = int(measured.live_bytes[top])
                if left_out[top]:
                    found.append(top)
        return np.array(sorted(found), dtype=np.int64)


def _none() -> IntArray:
    return np.zeros((0, len(_COLUMNS)), dtype=np.int64)


def _neighbours(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows before and after each row at the same address of a device, -1 for none."""
    order = np.lexsort((np.arange(len(rows)), rows[:, _ADDRESS], rows[:, _DEVICE]))
    places = rows[order][:, [_DEVICE, _ADDRESS]]
    is_same = (places[1:] == places[:-1]).all(axis=1)
    before, after = (np.full(len(rows), -1, dtype=np.int64) for _ in range(2))
    before[order[1:][is_same]] = order[:-1][is_same]
    after[order[:-1][is_same]] = order[1:][is_same]
    return before, after


def _first_births(before: IntArray, is_birth: NDArray[np.bool_]) -> IntArray:
    """Return for each birth the first birth at its address since the last free. Return any other row itself."""
    first: IntArray = np.where(is_birth & (before >= 0) & is_birth[before], before, np.arange(len(before)))
    while not np.array_equal(first, first[first]):
        first = first[first]
    return first
