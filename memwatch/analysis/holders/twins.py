"""Twins: other allocations of the same calls, as evidence for allocations that no sample saw.

In a loop, some allocations are born and freed between two samples: an item of a list, a cache that each pass
replaces. A sample that saw another one at the same age is evidence for them, and the answer is marked as inferred.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.holder import object_holder
from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.schema import IN_BACKWARD, NONE
from memwatch.kinds.holders import HolderKind, Inference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.holder import Holder
    from memwatch.analysis.holders.lasting import Births, LastingReferences
    from memwatch.analysis.holders.sample_rows import SampleRows
    from memwatch.capture.columns import IntArray

_NO_ROWS: Final = np.zeros(0, dtype=np.int64)
_MOST_ASKED: Final = 24


class Twins:
    """The rows of samples about storages, by the calls and the op that made them.

    One line runs many ops, as each line of a forward does under `torch.vmap`. The holder of one op's result says
    nothing about the result of another op.
    """

    def __init__(self, facts: Facts, rows: SampleRows, births: Births, lasting: LastingReferences) -> None:
        self._facts, self._rows, self._births, self._lasting = facts, rows, births, lasting
        self._table = rows.table

    @cached_property
    def _rows_by_kind(self) -> dict[tuple[int, int], IntArray]:
        made = self._facts.allocations.op[self._table["storage"]]
        rows = np.flatnonzero(made != NONE)
        ops = self._facts.capture.tables["ops"]
        kinds = zip(ops["stack"][made[rows]].tolist(), ops["name"][made[rows]].tolist(), strict=True)
        found: dict[tuple[int, int], list[int]] = {}
        for row, kind in zip(rows.tolist(), kinds, strict=True):
            if kind[0] != NONE:
                found.setdefault(kind, []).append(row)
        return {kind: np.array(rows) for kind, rows in found.items()}

    def rows(self, allocation: int) -> IntArray:
        """Return the rows about storages that the same calls made, by the same op."""
        stack = self._births.stack(allocation)
        if stack == NONE:
            return _NO_ROWS
        op_name = int(self._facts.capture.tables["ops"]["name"][self._facts.allocations.op[allocation]])
        return self._rows_by_kind.get((stack, op_name), _NO_ROWS)

    def of_same_size(self, allocation: int) -> IntArray:
        """Return the rows about storages of the same size that the same calls made."""
        rows, sizes = self.rows(allocation), self._facts.allocations.nbytes
        same: IntArray = rows[sizes[self._table["storage"][rows]] == sizes[allocation]]
        return same

    def holders(self, allocation: int, op: int, *, alike: bool = False, inside: bool = False) -> list[Holder]:
        """Return the holders of a twin, as they would hold an allocation while an op runs.

        Args:
            allocation: the piece of memory.
            op: the op.
            alike: whether only a twin of the same size and module counts.
            inside: whether only an object or a container counts as holder, and no variable alone.
        """
        made = self._facts.allocations.op
        # all ops of a backward have its one call stack
        alike = alike or self._facts.op_phase(int(made[allocation])) in IN_BACKWARD
        is_held = self._is_held(allocation)
        objects: list[Holder] = []
        for rows in self._nearest(allocation, op, alike=alike, inside=inside):
            age = int(self._table["op"][rows[0]]) - 1 - int(made[self._table["storage"][rows[0]]])
            seen = self._rows.seen_in(rows)
            placed = [self._placed(holder, rows, allocation, op, age) for holder in seen]
            kept = [
                holder for holder in placed if holder is not None and (is_in_object(holder) or not inside)
            ]
            if kept:
                return sorted(kept, key=lambda holder: holder.order)
            objects += filter(None, map(object_holder, seen) if is_held else ())
        # An allocation that outlasts calls lies in an object as its twin does, though the twin's call is over.
        return [holder.inferred(Inference.TWIN) for holder in objects[:1]] or self.of_other_calls(allocation)

    def of_other_calls(self, allocation: int) -> list[Holder]:
        """Return the object that holds allocations of other calls of the module and line of a held allocation."""
        if not self._is_held(allocation):
            return []
        rows = self._rows_by_place.get(self._place(allocation), [])
        holders = (self._rows.holder(int(self._table["path"][row])) for row in reversed(rows))
        objects = filter(None, map(object_holder, holders))
        return [holder.inferred(Inference.TWIN) for holder in itertools.islice(objects, 1)]

    def _is_held(self, allocation: int) -> bool:
        is_made = int(self._facts.allocations.op[allocation]) != NONE
        return is_made and bool(self._facts.categories.category[allocation] == "held")

    @cached_property
    def _rows_by_place(self) -> dict[tuple[str, ...], list[int]]:
        found: dict[tuple[str, ...], list[int]] = {}
        for row in np.flatnonzero(~self._rows.is_graph).tolist():
            found.setdefault(self._place(int(self._table["storage"][row])), []).append(row)
        return found

    def _place(self, allocation: int) -> tuple[str, ...]:
        made_by = self._facts.made_by
        columns = made_by.line, made_by.module_name, made_by.op_name
        return tuple(str(column[allocation]) for column in columns)

    def _placed(self, holder: Holder, rows: IntArray, allocation: int, op: int, age: int) -> Holder | None:
        """Return a holder that was seen in some rows as one of an allocation, None if it cannot be one then."""
        placed = self._lasting.of_twin(holder, allocation, op, twin_age=age)
        if self._table["storage"][rows[0]] != self._facts.allocations.storage[allocation]:
            return placed
        # not a twin: a later sample saw the allocation itself so, and `op` is before its first use
        lasting = placed or object_holder(holder)
        return None if lasting is None else lasting.inferred(Inference.LATER)

    def on_stack(self, allocation: int, op: int) -> list[Holder]:
        """Return the evaluation stack on which a sample saw a twin."""
        rows = self.rows(allocation)
        unnamed = rows[self._rows.with_kind(HolderKind.EVALUATION_STACK)[rows]]
        if not len(unnamed):
            return []
        seen = self._rows.holder(int(self._table["path"][unnamed[-1]]))
        holder = self._lasting.of_twin(seen, allocation, op)
        return [] if holder is None else [holder]

    def _nearest(self, allocation: int, op: int, *, alike: bool, inside: bool) -> Iterator[IntArray]:
        """Yield the rows of one twin in one sample at a time, the best fit first."""
        rows = self.rows(allocation)
        rows = rows[~self._rows.is_graph[rows]]
        if inside:  # repeated sightings on a stack would use up the tries
            rows = rows[~self._rows.with_kind(HolderKind.EVALUATION_STACK)[rows]]
        allocations, generation = self._facts.allocations, self._births.generation(allocation, op)
        storages, seen_ops = self._table["storage"][rows], self._table["op"][rows] - 1
        seen_at = [
            self._births.generation(storage, seen)
            for storage, seen in zip(storages.tolist(), seen_ops.tolist(), strict=True)
        ]
        replaced = np.array(seen_at, dtype=np.int64) < generation
        fits = ~replaced | self._is_kept[rows]  # a variable has the newer one by then, a container has both
        rows, storages, seen_ops = rows[fits], storages[fits], seen_ops[fits]
        other_size = allocations.nbytes[storages] != allocations.nbytes[allocation]
        age_apart = np.abs((seen_ops - allocations.op[storages]) - (op - int(allocations.op[allocation])))
        later = np.abs(np.array(seen_at, dtype=np.int64)[fits] - generation)
        later = np.where(self._is_kept[rows], 0, later)
        module = self._facts.places.module_of_op
        other_module = module[allocations.op[storages]] != module[allocations.op[allocation]]
        if alike:
            same = ~other_size & ~other_module
            rows, age_apart, later, other_size, other_module = (
                column[same] for column in (rows, age_apart, later, other_size, other_module)
            )
        order = np.lexsort((age_apart, later, other_size, other_module))
        asked: set[tuple[int, int]] = set()
        for row in rows[order].tolist():
            key = (int(self._table["sample"][row]), int(self._table["storage"][row]))
            if key not in asked and len(asked) < _MOST_ASKED:
                asked.add(key)
                yield self._rows.same_sample(rows, row)

    @cached_property
    def _is_kept(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Per row: whether the path ends in a container, which keeps what it has when another one is put in."""
        paths = self._rows.paths
        kept = [number for number, path in paths.items() if HolderPath(path).ends_in_container]
        return np.isin(self._table["path"], kept)


def is_in_object(holder: Holder) -> bool:
    """Return True if a container or an object holds the memory, not a variable alone or an evaluation stack."""
    return holder.is_inside and holder.kind is not HolderKind.EVALUATION_STACK
