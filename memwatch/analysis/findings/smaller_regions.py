"""Smaller regions: the memory that would be alive if every module in a checkpointed region were its own region.

One after the other would then be computed again, each right before its own backward. In return, the tensors that pass
from one module to the next would be kept from the forward on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray


class _Part(NamedTuple):
    """A module call within a region that ran again: its ops."""

    start_op: int
    end_op: int


class SmallerRegions:
    """The regions that a user would split, and the bytes that this would save.

    For each run only the rows of its own ops are read: a long program has as many runs as it has ops.

    Args:
        facts: the facts of the capture.
        runs: the runs of one region, or of all regions that one line calls.
    """

    def __init__(self, facts: Facts, runs: list[int]) -> None:
        self._facts = facts
        self._change = np.zeros(len(facts.curve.live_bytes) + 1, dtype=np.int64)
        self._uses, self._calls = facts.capture.tables["uses"], facts.capture.tables["calls"]
        self._allocations_by_op = Grouped(facts.allocations.op)
        self._uses_by_op, self._uses_by_storage = Grouped(self._uses["op"]), Grouped(self._uses["storage"])
        self._calls_by_start = Grouped(self._calls["start_op"])
        self._last_forward, self._last_backward = _last_ops(facts)
        self._outside_steps = np.flatnonzero(facts.capture.tables["ops"]["phase"] != OPTIMIZER)
        self.spared: list[int] = []
        """Allocations that would be made later, right before the backward of their part."""
        for run in runs:
            self._split(run)

    def bytes_of_event(self) -> IntArray:
        """Return, per event, the bytes that would not be live; negative where more would be."""
        return np.cumsum(self._change)[:-1]

    def _split(self, run: int) -> None:
        facts = self._facts
        ops = facts.recomputes.ops_of(run)
        after = int(ops[-1]) + 1 if len(ops) else facts.capture.rows("ops")
        parts = self._parts(ops) if after < facts.capture.rows("ops") else []
        if not parts:
            return
        number = _PartNumbers(parts, int(ops[0]), after)
        made = facts.allocations.op
        rows = self._allocations_by_op.within(int(ops[0]), after)
        rows = rows[
            (facts.recomputes.run_of_op[made[rows]] == run) & (facts.allocations.storage[rows] != NONE)
        ]
        kept = np.sort(rows[facts.are_alive_at(rows, self._event_of(after) - 1)])
        elsewhere = np.isin(facts.allocations.storage[kept], self._read_elsewhere(ops, number))
        is_inside = (number.of(made[kept]) != NONE) & ~elsewhere
        inside = kept[is_inside]
        begins = dict(zip(inside.tolist(), self._backward_of_parts(len(parts), inside, number), strict=True))
        before = self._event_of(self._start_of_forward(int(ops[0])))
        for row in kept.tolist():
            birth = int(facts.allocations.birth_event[row])
            if row not in begins:
                self._add(row, before, birth, kept=True)
            elif begins[row] > birth:
                self.spared.append(row)
                self._add(row, birth, begins[row], kept=False)

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

    def _read_elsewhere(self, ops: IntArray, number: _PartNumbers) -> IntArray:
        """Return the storages that an op of the region reads in another part than they were made in."""
        rows = self._uses_by_op.within(int(ops[0]), int(ops[-1]) + 1)
        is_read = self._uses["access"][rows] != ACCESSES.index("output")
        rows = rows[is_read & np.isin(self._uses["op"][rows], ops)]
        storage, reader = self._uses["storage"][rows], self._uses["op"][rows]
        elsewhere = number.of(self._facts.allocations.op[storage]) != number.of(reader)
        read: IntArray = storage[elsewhere]
        return read

    def _backward_of_parts(self, count: int, inside: IntArray, number: _PartNumbers) -> list[int]:
        """Return, for each allocation, the event when the backward of its part first reads the part's tensors."""
        facts, part = self._facts, number.of(self._facts.allocations.op[inside])
        first = np.full(count, facts.capture.rows("ops"), dtype=np.int64)
        phase, backward = facts.capture.tables["ops"]["phase"], BACKWARD
        storages = facts.allocations.storage[inside]
        for storage, part_number in zip(storages.tolist(), part.tolist(), strict=True):
            readers = self._uses["op"][self._uses_by_storage.within(storage, storage + 1)]
            readers = readers[phase[readers] == backward]
            first[part_number] = min(first[part_number], readers.min(initial=first[part_number]))
        return [self._event_of(op) for op in first[part].tolist()]

    def _parts(self, ops: IntArray) -> list[_Part]:
        """Return the module calls of a region, at the least depth with several calls."""
        start, end, depth = (self._calls[name] for name in ("start_op", "end_op", "depth"))
        rows = np.sort(self._calls_by_start.within(int(ops[0]), int(ops[-1]) + 1))
        rows = rows[(end[rows] <= ops[-1] + 1) & (end[rows] > start[rows])]
        for least in np.unique(depth[rows]).tolist():
            calls = rows[depth[rows] == least]
            if len(calls) > 1:
                return [_Part(int(start[call]), int(end[call])) for call in calls]
        return []

    def _start_of_forward(self, op: int) -> int:
        """Return the first op of the forward of an op of backward: after the backward and the steps before it."""
        forward = int(self._last_forward[op])
        last_backward = int(self._last_backward[forward]) if forward != NONE else NONE
        after = int(np.searchsorted(self._outside_steps, last_backward + 1))
        return min(int(self._outside_steps[after]), op) if after < len(self._outside_steps) else op


class _PartNumbers:
    """The part of each op of a run, by number."""

    def __init__(self, parts: list[_Part], start_op: int, end_op: int) -> None:
        self._start_op = start_op
        self._numbers = np.full(end_op - start_op + 1, NONE, dtype=np.int64)  # the last is of all other ops
        for number, part in enumerate(parts):
            self._numbers[part.start_op - start_op : part.end_op - start_op] = number

    def of(self, ops: IntArray) -> IntArray:
        """Return the number of the part of each op; -1 for ops outside all parts."""
        at = ops - self._start_op
        is_within = (at >= 0) & (at < len(self._numbers) - 1)
        numbers: IntArray = self._numbers[np.where(is_within, at, -1)]
        return numbers


def _last_ops(facts: Facts) -> tuple[IntArray, IntArray]:
    """Return, for each op, the last op so far that is of no backward, and the last that is of one; -1 if none."""
    in_backward = np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD)
    ops = np.arange(len(in_backward))
    forward, backward = (
        np.maximum.accumulate(np.where(is_one, ops, NONE)) for is_one in (~in_backward, in_backward)
    )
    return forward, backward
