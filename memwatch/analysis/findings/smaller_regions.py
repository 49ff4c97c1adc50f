"""Smaller regions: what would be alive if every module that a checkpointed region calls were a region of its own.

One after the other would then be computed again, each right before its own backward. In return what passes from one to
the next would be kept from forward on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.capture.schema import ACCESSES, IN_BACKWARD, NONE, PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


class _Part(NamedTuple):
    """A module call within a region that ran again: its ops."""

    start_op: int
    end_op: int


class SmallerRegions:
    """The regions that one would split, and what that would spare.

    Args:
        facts: what the capture shows.
        runs: the runs of one region, or of those that one line calls.
    """

    def __init__(self, facts: Facts, runs: list[int]) -> None:
        self._facts = facts
        self._change = np.zeros(len(facts.curve.live_bytes) + 1, dtype=np.int64)
        self.spared: list[int] = []
        """Allocations that would be made later, right before the backward of their part."""
        for run in runs:
            self._split(run)

    def bytes_of_event(self) -> IntArray:
        """Return, per event, the bytes that would not be live; negative where more would be."""
        return np.cumsum(self._change)[:-1]

    def _split(self, run: int) -> None:
        facts = self._facts
        ops = np.flatnonzero(facts.recomputes.run_of_op == run)
        parts = _parts(facts, ops)
        if not parts:
            return
        part_of = np.full(facts.capture.rows("ops") + 1, NONE, dtype=np.int64)
        for number, part in enumerate(parts):
            part_of[part.start_op : part.end_op] = number
        made = facts.allocations.op
        of_run = np.isin(made, ops) & (facts.allocations.storage != NONE)
        after = int(ops[-1]) + 1
        if after >= facts.capture.rows("ops"):
            return
        kept = of_run & facts.alive_at(self._event_of(after) - 1)
        inside = kept & (part_of[made] != NONE) & ~self._leaves_its_part(ops, part_of)
        begins = self._backward_of_parts(len(parts), inside, part_of)
        before = self._event_of(_last_backward_before(facts, int(ops[0])) + 1)
        for row in np.flatnonzero(kept).tolist():
            birth = int(facts.allocations.birth_event[row])
            if not inside[row]:
                self._add(row, before, birth, kept=True)
            elif begins[part_of[made[row]]] > birth:
                self.spared.append(row)
                self._add(row, birth, int(begins[part_of[made[row]]]), kept=False)

    def _add(self, row: int, start: int, end: int, *, kept: bool) -> None:
        death = int(self._facts.allocations.death_event[row])
        end = end if death == NONE else min(end, death)
        nbytes = int(self._facts.allocations.nbytes[row]) * (-1 if kept else 1)
        if start < end:
            self._change[start] += nbytes
            self._change[end] -= nbytes

    def _event_of(self, op: int) -> int:
        """Return the first event at or after the start of an op."""
        facts = self._facts
        start_ns = facts.capture.tables["ops"]["start_ns"]
        return (
            int(np.searchsorted(facts.curve.time_ns, start_ns[op]))
            if op < len(start_ns)
            else len(self._change) - 1
        )

    def _leaves_its_part(self, ops: IntArray, part_of: IntArray) -> NDArray[np.bool_]:
        """Return the allocations that an op of the region reads in another part than they were made in."""
        facts, uses = self._facts, self._facts.capture.tables["uses"]
        leaves = np.zeros(len(facts.allocations), dtype=bool)
        read = np.isin(uses["op"], ops) & (uses["access"] != ACCESSES.index("output"))
        storage, made = uses["storage"][read], facts.allocations.op[uses["storage"][read]]
        leaves[storage[part_of[made] != part_of[uses["op"][read]]]] = True
        return leaves

    def _backward_of_parts(self, count: int, inside: NDArray[np.bool_], part_of: IntArray) -> IntArray:
        """Return the event at which the backward of each part first reads what the part computed again."""
        facts, uses = self._facts, self._facts.capture.tables["uses"]
        phase, made = facts.capture.tables["ops"]["phase"], facts.allocations.op
        reads = inside[uses["storage"]] & (phase[uses["op"]] == PHASES.index("backward"))
        first = np.full(count, facts.capture.rows("ops"), dtype=np.int64)
        np.minimum.at(first, part_of[made[uses["storage"][reads]]], uses["op"][reads])
        return np.array([self._event_of(op) for op in first.tolist()], dtype=np.int64)


def _parts(facts: Facts, ops: IntArray) -> list[_Part]:
    """Return the module calls that a region consists of: those of the least depth at which there are several."""
    calls = facts.capture.tables["calls"]
    within = (
        (calls["start_op"] >= ops[0])
        & (calls["end_op"] <= ops[-1] + 1)
        & (calls["end_op"] > calls["start_op"])
    )
    for depth in np.unique(calls["depth"][within]).tolist():
        rows = np.flatnonzero(within & (calls["depth"] == depth))
        if len(rows) > 1:
            return [_Part(int(calls["start_op"][row]), int(calls["end_op"][row])) for row in rows]
    return []


def _last_backward_before(facts: Facts, op: int) -> int:
    """Return the last op of the backward before the one that an op belongs to, -1 if there is none."""
    in_backward = np.isin(facts.capture.tables["ops"]["phase"][: op + 1], IN_BACKWARD)
    forward = np.flatnonzero(~in_backward)
    if not len(forward):
        return NONE
    earlier = np.flatnonzero(in_backward[: forward[-1] + 1])
    return int(earlier[-1]) if len(earlier) else NONE
