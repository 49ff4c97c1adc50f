"""Choose the recorder's samples that are evidence for an allocation at an op, and return the holders that they saw.

A *sample* is one search of the recorder for the holders of all large live storages, in the middle of an op. Samples
are rare. Often the evidence is a sample that saw the allocation at another time, or that saw another allocation of
the same calls (a *twin*). `LastingReferences` decides whether such a holder still counts as seen, or as inferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.holder import object_holder
from memwatch.analysis.holders.lasting import Births, LastingReferences
from memwatch.analysis.holders.sample_rows import SampleRows
from memwatch.analysis.holders.twins import Twins, is_in_object
from memwatch.capture.schema import NONE
from memwatch.kinds.holders import HolderKind, Inference

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.holder import Holder
    from memwatch.capture.columns import IntArray

_SMALL_RATIO: Final = 0.001
_ACROSS: Final = (Inference.EARLIER, Inference.LATER)


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

    @property
    def storages(self) -> Collection[int]:
        """The storages that samples or peeks saw anybody hold."""
        return {*self._rows.storages, *self._rows.peeked_storages}

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran: the program's own first, innermost first.

        A variable of a call that does not run then is left out, whatever a sample saw before or after. The op's own
        result is in no variable yet.
        """
        if int(self._facts.allocations.op[allocation]) == op:
            return []
        return [holder for holder in self._holders(allocation, op) if holder.kind is not HolderKind.GRAPH]

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
        """Return the variables whose autograd graph kept an allocation, in the nearest sample whose variables last.

        The argument of a call that has ended since holds nothing any more, but a sample outside the call may have seen
        the variable that does. Where no sample was taken while it was saved, the graph of a twin tells.
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
        """Return all holders in the sample that speaks best for an allocation while an op ran."""
        facts, rows = self._facts, self._rows.of(allocation)
        peeked = self._rows.peeked(allocation, op)
        if peeked:
            return sorted(peeked, key=lambda holder: holder.nearness)
        if not len(rows) and not len(self._twins.rows(allocation)):
            # no sample saw it, nor another allocation of the same calls
            return self._twins.of_other_calls(allocation)
        if len(rows) and is_small(facts, allocation):  # most samples leave out what is so small
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
        """Return the evaluation stack on which other samples found the value that the nearest one did not find.

        The first sample that finds no variable does not ask gc. The next one does, and the stack had the value
        before.
        """
        is_on_stack = self._rows.with_kind(HolderKind.EVALUATION_STACK)[rows]
        if not len(rows) or not is_on_stack.all() or self._is_held(allocation):
            return []
        placed = (self._lasting.of_itself(each, allocation, op, op) for each in self._rows.seen_in(rows[:1]))
        return [holder for holder in placed if holder is not None]

    def _in_objects(self, allocation: int, op: int, *, alike: bool) -> list[Holder]:
        """Return the objects and containers that hold a twin: few samples search objects of packages.

        A value is on an evaluation stack for a moment, and in an object, such as a loader, from then on.

        Args:
            allocation: the piece of memory.
            op: the op.
            alike: whether only a twin of the same size and module counts.
        """
        # an allocation that does not outlast calls may lie in a variable as the nearest twin does
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
        """Return True if a twin speaks better than a sample that saw the allocation in another phase of its life.

        That holds while it waits for its first use: what waits in a list lies in a variable when it is used.
        """
        allocations, first = self._facts.allocations, self._facts.use_bounds[0]
        return int(allocations.op[allocation]) != NONE and not (seen and op >= first[allocation])

    def _own(self, rows: IntArray, samples: IntArray, allocation: int, op: int) -> list[Holder]:
        """Return the holders in the nearest of some samples; where all of these are gone, in the next nearest."""
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
            if not found:  # it was looked for, and no variable held it
                break
            seen_op = int(ops[at]) - 1
            placed = [self._of_itself(holder, rows, allocation, seen_op, op) for holder in found]
            kept = sorted(filter(None, placed), key=lambda holder: holder.nearness)
            if outlasts and kept and kept[0].foreign:  # a call of a package was given it: others keep it
                passing = passing or kept
            elif kept:
                return kept
            gone += found
        if passing:
            return self._objects_of(gone) or passing
        return self._after_return(gone, allocation, op) if gone else []

    def _after_return(self, gone: list[Holder], allocation: int, op: int) -> list[Holder]:
        """Return who may hold what was seen only in variables of calls that do not run: as a twin, or an object."""
        return self._twins.holders(allocation, op) or self._objects_of(gone)

    def _objects_of(self, gone: list[Holder]) -> list[Holder]:
        objects = (object_holder(holder) for holder in gone)
        return [holder.inferred(Inference.RETURNED) for holder in objects if holder is not None][:1]

    def _of_itself(
        self, holder: Holder, rows: IntArray, allocation: int, seen_op: int, op: int
    ) -> Holder | None:
        """Return a holder of an allocation, seen in one op, as its holder while another op runs.

        Where samples before and after saw it hold the same storage, that is likelier than where only one did.
        """
        placed = self._lasting.of_itself(holder, allocation, seen_op, op)
        if placed is None or placed.inference not in _ACROSS:
            return placed
        seen_ops = self._table["op"][rows] - 1
        same = np.array(
            [self._rows.holder(path).key == holder.key for path in self._table["path"][rows].tolist()]
        )
        if (same & (seen_ops <= op)).any() and (same & (seen_ops >= op)).any():
            return placed.inferred(Inference.BETWEEN)
        return placed

    def _telling_samples(self, allocation: int, op: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the samples taken while an allocation was alive, and those among them in the same phase as `op`.

        The holder of a value changes with its use: a value that waited in a list moves to a variable. A storage is
        unknown to the sample in the middle of whose op it was born.
        """
        facts, sample_ops = self._facts, self._sample_ops
        death = int(facts.allocations.death_event[allocation])
        end = facts.op_at(death) if death != NONE else facts.capture.rows("ops")
        made = int(facts.allocations.op[allocation])
        alive = (sample_ops > made + 1 if made != NONE else sample_ops >= 0) & (sample_ops <= end)
        # also during the op in which, or after which, it died
        alive |= np.isin(self._samples, self._table["sample"][self._rows.of(allocation)])
        first, last = (int(bound[allocation]) for bound in facts.use_bounds)
        if first == NONE:
            return alive, alive
        if op < first:
            return alive, alive & (sample_ops <= first)
        return alive, alive & (sample_ops > last + 1 if op > last else sample_ops > first)


def is_small(facts: Facts, allocation: int) -> bool:
    """Return True for memory whose holder the recorder does not look for: less than 0.1 % of the peak's increase."""
    return bool(are_small(facts, np.array([allocation]))[0])


def are_small(facts: Facts, allocations: IntArray) -> NDArray[np.bool_]:
    """Return which allocations are small."""
    least_bytes = _SMALL_RATIO * facts.curve.peak_increase_bytes
    small: NDArray[np.bool_] = facts.allocations.nbytes[allocations] <= least_bytes
    return small
