"""Which of the recorder's samples speak for an allocation at an op, and whom they saw holding it.

A *sample* is one search of the recorder for the holders of everything large that was live at that moment. Samples
are rare, so one that saw the allocation at another time, or another allocation that the same calls made (a *twin*),
often has to speak for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.calls import common_call
from memwatch.analysis.holders.holder import holder_of
from memwatch.analysis.holders.kinds import HolderKind
from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.paths import Path, read_paths
from memwatch.capture.schema import NONE
from memwatch.edges import Edge, EdgeKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.holder import Holder
    from memwatch.capture.packed import IntArray

SMALL_RATIO: Final = 0.001
"""Share of the peak increase below which the recorder does not look for a storage's holder."""
_UNKNOWN: Final[Path] = (Edge(EdgeKind.EVALUATION_STACK),)
"""What a sample told whose path was never written, for the program was killed: nothing is known of it."""
_NO_ROWS: Final = np.zeros(0, dtype=np.int64)


class HolderSamples:
    """The recorded samples of a capture."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._table = facts.capture.tables["holders"]
        self._known: dict[int, Holder] = {}
        found, first = np.unique(self._table["sample"], return_index=True)
        self._samples, self._sample_ops = found, self._table["op"][first]

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation in the sample nearest to an op.

        The program's own come first, and of these the innermost.
        """
        return [holder for holder in self._holders(allocation, op) if holder.kind is not HolderKind.GRAPH]

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation, in the nearest sample that saw one.

        Where no sample was taken while it was saved, the graph of a twin tells.
        """
        for rows in (self._rows_of(allocation), self._twin_rows(allocation)):
            graphs = rows[self._is_graph[rows]]
            if len(graphs):
                nearest = graphs[np.argmin(np.abs(self._table["op"][graphs] - op))]
                return self._read(self._same_sample(graphs, nearest), allocation, op)
        return []

    @cached_property
    def _paths(self) -> dict[int, Path]:
        return read_paths(self._facts.capture)

    def _holder(self, path: int) -> Holder:
        """Return the holder that a path shows; the same one each time, for its words take time to make."""
        holder = self._known.get(path)
        if holder is None:
            holder = self._known[path] = holder_of(self._paths.get(path, _UNKNOWN))
        return holder

    def _rows_with(self, kind: HolderKind) -> NDArray[np.bool_]:
        """Return, for each row, whether its holder is of a kind."""
        wanted = [number for number, path in self._paths.items() if HolderPath(path).kind is kind]
        return np.isin(self._table["path"], wanted)

    @cached_property
    def _is_graph(self) -> NDArray[np.bool_]:
        return self._rows_with(HolderKind.GRAPH)

    @cached_property
    def _rows_by_storage(self) -> dict[int, IntArray]:
        found: dict[int, list[int]] = {}
        for row, storage in enumerate(self._table["storage"].tolist()):
            found.setdefault(storage, []).append(row)
        return {storage: np.array(rows) for storage, rows in found.items()}

    def _rows_of(self, allocation: int) -> IntArray:
        return self._rows_by_storage.get(int(self._facts.allocations.storage[allocation]), _NO_ROWS)

    def _same_sample(self, rows: IntArray, row: int) -> IntArray:
        """Return the rows that tell of the same storage in the same sample as one of them."""
        table = self._table
        same = (table["sample"][rows] == table["sample"][row]) & (
            table["storage"][rows] == table["storage"][row]
        )
        chosen: IntArray = rows[same]
        return chosen

    def _holders(self, allocation: int, op: int) -> list[Holder]:
        """Return all holders in the sample that speaks best for an allocation while an op ran."""
        facts, rows = self._facts, self._rows_of(allocation)
        small = facts.allocations.nbytes[allocation] <= SMALL_RATIO * facts.curve.peak_increase_bytes
        if len(rows) and small:  # most samples leave out what is so small
            nearest = self._table["sample"][rows][np.argmin(np.abs(self._table["op"][rows] - op))]
        else:
            alive, telling = self._telling_samples(allocation, op)
            known = telling if telling.any() else alive
            if not telling.any() and (
                holders := self._holders_of_twin(allocation, op, seen=bool(alive.any()))
            ):
                return holders
            if not len(rows) or not known.any():
                return self._stack_holder_of_twin(allocation, op)
            nearest = self._samples[known][np.argmin(np.abs(self._sample_ops[known] - op))]
        return self._read(rows[self._table["sample"][rows] == nearest], allocation, op)

    def _telling_samples(self, allocation: int, op: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the samples taken while an allocation was alive, and those among them in the same phase as `op`.

        Who holds a value changes with its use: what waited in a list lies in a variable then. A storage is
        unknown to the sample in the middle of whose op it was born.
        """
        facts, sample_ops = self._facts, self._sample_ops
        death = int(facts.allocations.death_event[allocation])
        end = int(facts.op_of_event[death]) if death != NONE else facts.capture.rows("ops")
        made = int(facts.allocations.op[allocation])
        alive = (sample_ops > made + 1 if made != NONE else sample_ops >= 0) & (sample_ops <= end)
        first, last = (int(bound[allocation]) for bound in facts.use_bounds)
        if first == NONE:
            return alive, alive
        if op < first:
            return alive, alive & (sample_ops <= first)
        return alive, alive & (sample_ops > last + 1 if op > last else sample_ops > first)

    def _read(self, rows: IntArray, allocation: int, op: int) -> list[Holder]:
        """Return the holders of rows as those of an allocation while an op ran."""
        found = dict.fromkeys(map(self._holder, self._table["path"][rows].tolist()))
        placed = [self._on_stack(holder, allocation, op) for holder in found]
        return sorted(placed, key=lambda holder: holder.foreign)

    def _on_stack(self, holder: Holder, allocation: int, op: int) -> Holder:
        """Return a holder that names on whose stack the value lies: the innermost call that made it and still runs."""
        call = (
            common_call(self._facts, allocation, op) if holder.kind is HolderKind.EVALUATION_STACK else None
        )
        if call is None:
            return holder
        return holder.on_stack_of(call.function, call.site, is_own=call.is_own)

    @cached_property
    def _twins(self) -> dict[tuple[int, int], IntArray]:
        """Rows by the stack that made the storage and its size, in the order of the ops."""
        allocations, table = self._facts.allocations, self._table
        made = allocations.op[table["storage"]]
        rows = np.flatnonzero(made != NONE)
        stacks = self._facts.capture.tables["ops"]["stack"][made[rows]].tolist()
        sizes = allocations.nbytes[table["storage"][rows]].tolist()
        found: dict[tuple[int, int], list[int]] = {}
        for row, stack, nbytes in zip(rows.tolist(), stacks, sizes, strict=True):
            if stack != NONE:
                found.setdefault((stack, nbytes), []).append(row)
        return {key: np.array(rows) for key, rows in found.items()}

    def _twin_rows(self, allocation: int) -> IntArray:
        """Return the rows about storages of the same size that the same calls made."""
        made = int(self._facts.allocations.op[allocation])
        if made == NONE:
            return _NO_ROWS
        stack = int(self._facts.capture.tables["ops"]["stack"][made])
        return self._twins.get((stack, int(self._facts.allocations.nbytes[allocation])), _NO_ROWS)

    def _holders_of_twin(self, allocation: int, op: int, *, seen: bool) -> list[Holder]:
        """Return the holders of a twin, where no sample could have seen the allocation itself.

        Of the items that a loop puts into a list some are born and gone between two samples. A sample that saw one
        of them at the same age speaks for these too.

        Args:
            allocation: the piece of memory.
            op: the op while which it is held.
            seen: whether a sample saw it in another phase; that is better than a twin, but for lag.
        """
        allocations, table = self._facts.allocations, self._table
        made, first = int(allocations.op[allocation]), self._facts.use_bounds[0]
        if made == NONE or (seen and op >= first[allocation]):
            return []
        rows = self._twin_rows(allocation)
        rows = rows[~self._is_graph[rows]]
        if not len(rows):
            return []
        age = table["op"][rows] - allocations.op[table["storage"][rows]]
        nearest = rows[np.argmin(np.abs(age - (op - made)))]
        return self._read(self._same_sample(rows, nearest), allocation, op)

    @cached_property
    def _on_stack_by_birth(self) -> dict[int, Holder]:
        """What gc told of unnamed storages, by the stack that made them: it is not asked for every one."""
        rows = np.flatnonzero(self._rows_with(HolderKind.EVALUATION_STACK))
        stacks = self._facts.capture.tables["ops"]["stack"]
        made = self._facts.allocations.op[self._table["storage"][rows]]
        paths = self._table["path"][rows].tolist()
        return {
            int(stacks[op]): self._holder(path)
            for op, path in zip(made.tolist(), paths, strict=True)
            if op != NONE and stacks[op] != NONE
        }

    def _stack_holder_of_twin(self, allocation: int, op: int) -> list[Holder]:
        """Return the holder of another storage that the same calls made, where gc was asked for that one only."""
        made = int(self._facts.allocations.op[allocation])
        if made == NONE:
            return []
        holder = self._on_stack_by_birth.get(int(self._facts.capture.tables["ops"]["stack"][made]))
        return [] if holder is None else [self._on_stack(holder, allocation, op)]
