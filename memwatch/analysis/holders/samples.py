"""The samples of the recorder as evidence: who held an allocation while an op ran.

A *sample* is one search of the recorder for the holders of all large live storages, in the middle of an op. Samples
are rare. Often the evidence is a sample that saw the allocation at another time, or that saw a *twin*: another
allocation of the same calls. In a loop, some allocations are born and freed between two samples, such as an item of a
list, or a cache that each pass replaces. If a sample saw a twin at the same age, the twin's holder is the answer, and
the answer is marked as inferred.

`SampleRows` reads the recorded rows, `Twins` finds twins, and `HolderSamples` chooses the sample. `LastingReferences`
decides whether a holder that was seen in one op still counts in another.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.holder import holder_of, object_holder
from memwatch.analysis.holders.lasting import Births, LastingReferences
from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.paths import Path, read_paths
from memwatch.capture.schema import IN_BACKWARD, NONE
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.kinds.holders import HolderKind, Inference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.holder import Holder
    from memwatch.capture.columns import IntArray

_UNKNOWN: Final[Path] = (Edge(EdgeKind.EVALUATION_STACK),)
"""The path of a sample whose path was not written because the program was killed. Nothing is known of it."""
_NO_ROWS: Final = np.zeros(0, dtype=np.int64)
_MOST_ASKED: Final = 24
"""Pairs of a twin and a sample whose holders are read for one allocation, the best fit first. A guess."""
_SMALL_RATIO: Final = 0.001
"""A share of the peak's increase, as in `record/holders/state.py`: no sample searches for the holder of less memory."""
_Place = tuple[object, ...]
_ACROSS: Final = (Inference.EARLIER, Inference.LATER)
"""The inferences from a sample in another op than the one that is asked for."""


class SampleRows:
    """The table `holders`, with each path read as a holder.

    Attributes:
        table: its columns.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        rows = facts.capture.tables["holders"]
        is_peek = rows["sample"] == NONE
        self.table = {name: rows[name][~is_peek] for name in ("sample", "op", "storage", "path")}
        self._peeks = {name: rows[name][is_peek] for name in ("op", "storage", "path")}
        self._known: dict[int, Holder] = {}

    @cached_property
    def paths(self) -> dict[int, Path]:
        """The recorded retention paths, by number."""
        return read_paths(self._facts.capture)

    def holder(self, path: int) -> Holder:
        """Return the holder that a path shows. It is the same object each time, because its words take time to make."""
        holder = self._known.get(path)
        if holder is None:
            holder = self._known[path] = holder_of(self.paths.get(path, _UNKNOWN))
        return holder

    def peeked(self, allocation: int, op: int) -> list[Holder]:
        """Return the holders of an allocation that a peek during an op found.

        A peek is cheaper than a sample: it looks only at the places where samples have found tensors.
        """
        peeks, storage = self._peeks, int(self._facts.allocations.storage[allocation])
        rows = np.flatnonzero((peeks["op"] == op + 1) & (peeks["storage"] == storage))
        return list(dict.fromkeys(map(self.holder, peeks["path"][rows].tolist())))

    @property
    def peeked_storages(self) -> Collection[int]:
        """The storages that peeks found."""
        return set(self._peeks["storage"].tolist())

    def with_kind(self, kind: HolderKind) -> NDArray[np.bool_]:
        """Return, for each row, whether its holder is of a kind."""
        return self._is_of_kind.get(kind, np.zeros(len(self.table["path"]), dtype=bool))

    @cached_property
    def _is_of_kind(self) -> dict[HolderKind, NDArray[np.bool_]]:
        numbers: dict[HolderKind, list[int]] = {}
        for number, path in self.paths.items():
            numbers.setdefault(HolderPath(path).kind, []).append(number)
        return {kind: np.isin(self.table["path"], found) for kind, found in numbers.items()}

    @cached_property
    def is_graph(self) -> NDArray[np.bool_]:
        """Per row: whether a variable's autograd graph holds the storage, and not the variable."""
        return self.with_kind(HolderKind.GRAPH)

    @cached_property
    def _rows_by_storage(self) -> dict[int, IntArray]:
        found: dict[int, list[int]] = {}
        for row, storage in enumerate(self.table["storage"].tolist()):
            found.setdefault(storage, []).append(row)
        return {storage: np.array(rows) for storage, rows in found.items()}

    @cached_property
    def keys_with_one_value(self) -> dict[tuple[object, ...], int]:
        """The dictionaries whose keys have one value at a time, with the number of their keys.

        Samples saw each key with one value and later with another, while the first value was still alive. So something
        else kept the first value, and the dictionary had replaced it.
        """
        deaths, ops = self._facts.allocations.death_ns, self._facts.capture.tables["ops"]["start_ns"]
        values: dict[tuple[tuple[object, ...], str | None], list[tuple[int, int]]] = {}
        paths = {}
        for number in self.paths:
            holder = self.holder(number)
            if holder.place is not None and HolderPath(holder.edges).is_value_of_key:
                paths[number] = holder.place, holder.edges[-1].name
        for row in np.flatnonzero(np.isin(self.table["path"], list(paths))).tolist():
            seen = int(self.table["op"][row]) - 1, int(self.table["storage"][row])
            values.setdefault(paths[int(self.table["path"][row])], []).append(seen)
        keys: dict[tuple[object, ...], list[bool]] = {}
        for (place, _), seen_values in values.items():
            is_replaced = any(
                storage != after and (deaths[storage] == NONE or deaths[storage] > ops[op])
                for (_, storage), (op, after) in itertools.pairwise(seen_values)
            )
            keys.setdefault(place, []).append(is_replaced)
        return {place: len(replaced) for place, replaced in keys.items() if all(replaced)}

    @property
    def storages(self) -> Collection[int]:
        """The storages that any row is about."""
        return self._rows_by_storage.keys()

    def of(self, allocation: int) -> IntArray:
        """Return the rows about an allocation."""
        return self._rows_by_storage.get(int(self._facts.allocations.storage[allocation]), _NO_ROWS)

    def same_sample(self, rows: IntArray, row: int) -> IntArray:
        """Return the rows about the storage of one row in the same sample."""
        table = self.table
        same = (table["sample"][rows] == table["sample"][row]) & (
            table["storage"][rows] == table["storage"][row]
        )
        chosen: IntArray = rows[same]
        return chosen

    def seen_in(self, rows: IntArray) -> list[Holder]:
        """Return the holders in some rows, each once."""
        return list(dict.fromkeys(map(self.holder, self.table["path"][rows].tolist())))


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
        # all ops of a backward have one call stack, so the stack does not tell their results apart
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
        # The call whose variable led to the twin may be over. An allocation that outlives calls is in the same object.
        return [holder.inferred(Inference.TWIN) for holder in objects[:1]] or self.of_other_calls(allocation)

    def of_other_calls(self, allocation: int) -> list[Holder]:
        """Return the object that holds allocations which the same line and module made in other calls.

        Return it only for an allocation that outlives iterations ("held").
        """
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
        """Return a holder that was seen in some rows as the holder of an allocation; None if it cannot be that."""
        placed = self._lasting.of_twin(holder, allocation, op, twin_age=age)
        if self._table["storage"][rows[0]] != self._facts.allocations.storage[allocation]:
            return placed
        # The rows are not about a twin: a later sample saw this holder of the allocation itself, and `op` is before
        # its first use.
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
        if inside:  # rows about evaluation stacks would use up the `_MOST_ASKED` tries
            rows = rows[~self._rows.with_kind(HolderKind.EVALUATION_STACK)[rows]]
        allocations, generation = self._facts.allocations, self._births.generation(allocation, op)
        storages, seen_ops = self._table["storage"][rows], self._table["op"][rows] - 1
        # how many later twins had been made when a sample saw each twin
        seen_at = self._births.generations(storages, seen_ops)
        replaced = seen_at < generation
        # By then a variable refers to a newer allocation of these calls. A container keeps both.
        fits = ~replaced | self._is_kept[rows]
        rows, storages, seen_ops = rows[fits], storages[fits], seen_ops[fits]
        other_size = allocations.nbytes[storages] != allocations.nbytes[allocation]
        age_apart = np.abs((seen_ops - allocations.op[storages]) - (op - int(allocations.op[allocation])))
        later = np.abs(seen_at[fits] - generation)
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


class HolderSamples:
    """The recorded samples of a capture."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._rows = SampleRows(facts)
        self._table = self._rows.table
        found, first = np.unique(self._table["sample"], return_index=True)
        self._samples, self._sample_ops = found, self._table["op"][first]
        self._births = births = Births(facts)
        self._lasting = LastingReferences(facts, births)
        self._twins = Twins(facts, self._rows, births, self._lasting)
        self._stay: dict[tuple[_Place, int, int, int], set[int] | None] = {}

    @property
    def storages(self) -> Collection[int]:
        """The storages for which samples or peeks saw a holder."""
        return {*self._rows.storages, *self._rows.peeked_storages}

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran: the program's own first, innermost first.

        A variable of a call that does not run then is left out, whatever a sample saw before or after. The op's own
        result is in no variable yet.
        """
        if int(self._facts.allocations.op[allocation]) == op:
            return []
        found = self._found(allocation, op)
        places = [holder.place if _is_of_one_sample(holder) else None for holder in found]
        crowded = {
            place for place in places if place is not None and self._is_crowded_out(place, allocation, op)
        }
        if not crowded:
            return found
        left = [holder for holder, place in zip(found, places, strict=True) if place not in crowded]
        return left or self._elsewhere(allocation)

    def _found(self, allocation: int, op: int) -> list[Holder]:
        return [holder for holder in self._holders(allocation, op) if holder.kind is not HolderKind.GRAPH]

    def _is_crowded_out(self, place: _Place, allocation: int, op: int) -> bool:
        """Return True if a place has room for fewer values than were inferred to be there while an op runs.

        A variable or an attribute has one value at a time. If it is the inferred holder of more allocations of the
        same calls, the newest of these is the value, because each new one replaces the one before.
        """
        alike = self._births.alive_alike(allocation, op)
        if len(alike) < 2:
            return False
        key = place, op, int(alike[0]), len(alike)
        if key not in self._stay:
            self._stay[key] = self._staying(place, alike.tolist(), op)
        stay = self._stay[key]
        return stay is not None and allocation not in stay

    def _staying(self, place: _Place, alike: list[int], op: int) -> set[int] | None:
        """Return the allocations that a place may have, None if it may have all that were inferred to be there."""
        there: dict[int, Holder] = {}
        for each in alike:
            if int(self._facts.allocations.op[each]) != op:
                there.update((each, holder) for holder in self._found(each, op) if holder.place == place)
        room = self._room(place, next(iter(there.values())), op) if there else None
        if room is None or len(there) <= room:
            return None
        is_known = {each: not _is_of_one_sample(holder) for each, holder in there.items()}
        known = {each for each, is_sure in is_known.items() if is_sure}
        others = [each for each, is_sure in is_known.items() if not is_sure]
        return known | set(others[len(others) - max(room - len(known), 0) :])

    def _room(self, place: _Place, holder: Holder, op: int) -> int | None:
        """Return how many values a place has at a time; None if that is unknown."""
        calls = self._lasting.count_of_calls(holder, op)
        if calls != 1:
            return None
        return self._rows.keys_with_one_value.get(place) if HolderPath(holder.edges).is_value_of_key else 1

    def _elsewhere(self, allocation: int) -> list[Holder]:
        """Return the object that holds an allocation, or a twin of it, by samples: not in a place for one value.

        A place for one value has another value by now (`_is_crowded_out`).
        """
        evidence = ((self._rows.of(allocation), True), (self._twins.of_same_size(allocation), False))
        for seen, is_own in evidence:
            rows = seen[~self._rows.is_graph[seen]]
            for row in rows[np.argsort(-self._table["sample"][rows], kind="stable")].tolist():
                holder = self._rows.holder(int(self._table["path"][row]))
                is_root = holder.kind in (HolderKind.LOCAL, HolderKind.ARGUMENT)
                if is_root or not is_in_object(holder) or holder.place is not None:
                    continue
                kept = object_holder(holder)
                if kept is not None:
                    return [kept.inferred(Inference.EARLIER if is_own else Inference.TWIN)]
        return []

    def was_in_no_variable(self, allocation: int, op: int) -> bool:
        """Return True if samples searched for an allocation, or for another of the same calls, and found no variable.

        Return False if these calls have made another allocation since: only their latest one is judged.
        """
        if self._births.generation(allocation, op):
            return False
        return any(self._is_looked_for_in_vain(row, op) for row in self._births.alike(allocation))

    def _is_looked_for_in_vain(self, allocation: int, op: int) -> bool:
        if is_small(self._facts, allocation) or len(self._rows.of(allocation)):
            return False
        alive, _ = self._telling_samples(allocation, op)
        return bool(alive.any())

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation while an op ran.

        They are those of the nearest sample with a variable that still exists at the op. If a sample saw only an
        argument of a call that has ended, the next sample may have seen the caller's variable. If no sample was taken
        while the allocation was saved, the graph of a twin decides.
        """
        for rows, is_own in (
            (self._rows.of(allocation), True),
            (self._twins.of_same_size(allocation), False),
        ):
            graphs = rows[self._rows.is_graph[rows]]
            nearest_first = graphs[np.argsort(np.abs(self._table["op"][graphs] - op), kind="stable")]
            seen: set[tuple[int, int]] = set()
            for nearest in nearest_first.tolist():
                sample = int(self._table["sample"][nearest]), int(self._table["storage"][nearest])
                if sample in seen:
                    continue
                seen.add(sample)
                seen_op = int(self._table["op"][nearest]) - 1
                found = self._rows.seen_in(self._rows.same_sample(graphs, nearest))
                placed = (
                    self._of_itself(root, graphs, allocation, seen_op, op)
                    if is_own
                    else self._lasting.of_twin(root, allocation, op)
                    for root in found
                )
                kept = [root for root in placed if root is not None]
                if kept or not is_own:
                    return sorted(kept, key=lambda root: root.foreign)
            if seen:
                return []
        return []

    def _holders(self, allocation: int, op: int) -> list[Holder]:
        """Return all holders in the sample that is the best evidence for an allocation while an op ran."""
        facts, rows = self._facts, self._rows.of(allocation)
        peeked = self._rows.peeked(allocation, op)
        if peeked:
            return sorted(peeked, key=lambda holder: holder.nearness)
        if not len(rows) and not len(self._twins.rows(allocation)):
            # no sample saw it or another allocation of the same calls
            return self._twins.of_other_calls(allocation)
        if len(rows) and is_small(facts, allocation):  # most samples leave out such small memory
            found = self._own(rows, np.unique(self._table["sample"][rows]), allocation, op)
            is_on_stack = bool(found) and all(each.kind is HolderKind.EVALUATION_STACK for each in found)
            if is_on_stack and self._is_held(allocation):  # it was there when it was made
                return self._in_objects(allocation, op, alike=False) or found
            return found
        alive, telling = self._telling_samples(allocation, op)
        if not telling.any() and self._may_ask_twins(allocation, op, seen=bool(alive.any())):
            holders = self._twins.holders(allocation, op)
            if holders:
                return holders
        known = telling if telling.any() else alive
        if len(rows) and known.any():
            found = self._own(rows, self._samples[known], allocation, op)
        else:
            # a twin that lasts was on a stack for a moment, and in an object from then on
            lasting = self._in_objects(allocation, op, alike=False) if self._is_held(allocation) else []
            found = lasting or self._twins.on_stack(allocation, op)
        is_seen = any(holder.inference is not Inference.SAME_CALL for holder in found)
        if is_seen:
            return found
        return (
            self._in_objects(allocation, op, alike=True)
            or found
            or self._on_stack_later(rows, allocation, op)
            or self._since_it_was_on_a_stack(allocation, op, alive)
            or (self._in_objects(allocation, op, alike=False) if self._is_held(allocation) else [])
        )

    def _is_held(self, allocation: int) -> bool:
        return bool(self._facts.categories.category[allocation] == "held")

    def _on_stack_later(self, rows: IntArray, allocation: int, op: int) -> list[Holder]:
        """Return the evaluation stack on which other samples found a value that the nearest sample did not find.

        A sample that finds no variable for a value for the first time does not use gc to search on. The next sample
        does, and finds the stack. The value was there already.
        """
        is_on_stack = self._rows.with_kind(HolderKind.EVALUATION_STACK)[rows]
        if not len(rows) or not is_on_stack.all() or self._is_held(allocation):
            return []
        placed = (self._lasting.of_itself(each, allocation, op, op) for each in self._rows.seen_in(rows[:1]))
        return [holder for holder in placed if holder is not None]

    def _in_objects(self, allocation: int, op: int, *, alike: bool) -> list[Holder]:
        """Return the objects and containers that hold a twin.

        Use this because few samples search the objects of packages. A value is on an evaluation stack for a moment, and
        from then on in an object, such as a loader.

        Args:
            allocation: the piece of memory.
            op: the op.
            alike: whether only a twin of the same size and module counts.
        """
        # if the allocation does not outlive iterations, a plain variable of the nearest twin rules out an object
        found = self._twins.holders(allocation, op, alike=alike, inside=self._is_held(allocation))
        return [holder for holder in found if is_in_object(holder)]

    def _since_it_was_on_a_stack(self, allocation: int, op: int, alive: NDArray[np.bool_]) -> list[Holder]:
        """Return the holders of the best twin, unless a sample searched for the allocation at `op` or later.

        At that op it was a value without a variable, such as the first of two in one statement.
        """
        if not self._is_held(allocation) or (self._sample_ops[alive] > op).any():
            return []
        return self._twins.holders(allocation, op)

    def _may_ask_twins(self, allocation: int, op: int, *, seen: bool) -> bool:
        """Return True if a twin is better evidence than a sample of the allocation in another phase of its life.

        That is so until its first use. A value may wait in a list, and be in a variable only when it is used.
        """
        allocations, first = self._facts.allocations, self._facts.use_bounds[0]
        return int(allocations.op[allocation]) != NONE and not (seen and op >= first[allocation])

    def _own(self, rows: IntArray, samples: IntArray, allocation: int, op: int) -> list[Holder]:
        """Return the holders in the nearest of some samples. If none of them still exists, take the next sample."""
        ops = self._sample_ops[np.searchsorted(self._samples, samples)]
        gone: list[Holder] = []
        passing: list[Holder] = []
        outlasts = self._is_held(allocation)
        run = self._lasting.torch_runs.around(op)
        is_after_run = np.zeros(len(ops), dtype=bool) if run is None else (ops <= op) | (ops > run.stop)
        for at in np.lexsort((np.abs(ops - 1 - op), is_after_run)).tolist():
            found = self._rows.seen_in(rows[self._table["sample"][rows] == samples[at]])
            if not found and passing:
                continue
            if not found:  # the sample searched for it, and no variable held it
                break
            seen_op = int(ops[at]) - 1
            placed = [self._of_itself(holder, rows, allocation, seen_op, op) for holder in found]
            kept = sorted(filter(None, placed), key=lambda holder: holder.nearness)
            if (
                outlasts and kept and kept[0].foreign
            ):  # only the argument of a call of a package: another object keeps it
                passing = passing or kept
            elif kept:
                return kept
            gone += found
        if passing:
            return self._objects_of(gone) or passing
        return self._after_return(gone, allocation, op) if gone else []

    def _after_return(self, gone: list[Holder], allocation: int, op: int) -> list[Holder]:
        """Return the likely holders of memory that was seen only in variables of calls that do not run any more."""
        return self._twins.holders(allocation, op) or self._objects_of(gone)

    def _objects_of(self, gone: list[Holder]) -> list[Holder]:
        objects = (object_holder(holder) for holder in gone)
        return [holder.inferred(Inference.RETURNED) for holder in objects if holder is not None][:1]

    def _of_itself(
        self, holder: Holder, rows: IntArray, allocation: int, seen_op: int, op: int
    ) -> Holder | None:
        """Return a holder of an allocation, seen in one op, as its holder while another op runs.

        If samples before and after the op saw the same holder, mark the inference as `BETWEEN`, which is more certain.
        """
        placed = self._lasting.of_itself(holder, allocation, seen_op, op)
        if placed is None or placed.inference not in _ACROSS:
            return placed
        seen_ops = self._table["op"][rows] - 1
        # a list has a path for each of its items, and each sample has a row for each path
        paths, key = self._table["path"][rows].tolist(), holder.key
        is_same = {path: self._rows.holder(path).key == key for path in set(paths)}
        same = np.array([is_same[path] for path in paths])
        if (same & (seen_ops <= op)).any() and (same & (seen_ops >= op)).any():
            return placed.inferred(Inference.BETWEEN)
        return placed

    def _telling_samples(self, allocation: int, op: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the samples taken while an allocation was alive, and those among them in the same phase as `op`.

        The phases are before the first use, in use, and after the last use. The holder may change between them: a value
        that waited in a list moves to a variable. A sample in the middle of the op that makes a storage lacks the
        storage.
        """
        facts, sample_ops = self._facts, self._sample_ops
        death = int(facts.allocations.death_event[allocation])
        end = facts.op_at(death) if death != NONE else facts.capture.rows("ops")
        made = int(facts.allocations.op[allocation])
        alive = (sample_ops > made + 1 if made != NONE else sample_ops >= 0) & (sample_ops <= end)
        # also in the op during which it died, or the op before its death
        alive |= np.isin(self._samples, self._table["sample"][self._rows.of(allocation)])
        first, last = (int(bound[allocation]) for bound in facts.use_bounds)
        if first == NONE:
            return alive, alive
        if op < first:
            return alive, alive & (sample_ops <= first)
        return alive, alive & (sample_ops > last + 1 if op > last else sample_ops > first)


def _is_of_one_sample(holder: Holder) -> bool:
    return holder.inference is not None and holder.inference.is_of_one_sample


def is_small(facts: Facts, allocation: int) -> bool:
    """Return True for memory whose holder the recorder does not search for, see `_SMALL_RATIO`."""
    return bool(are_small(facts, np.array([allocation]))[0])


def are_small(facts: Facts, allocations: IntArray) -> NDArray[np.bool_]:
    """Return which allocations are small."""
    least_bytes = _SMALL_RATIO * facts.curve.peak_increase_bytes
    small: NDArray[np.bool_] = facts.allocations.nbytes[allocations] <= least_bytes
    return small
