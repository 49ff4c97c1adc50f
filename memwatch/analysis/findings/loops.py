"""Passes of loops: whether the calls that made an allocation make another, and whether later passes read it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.running import defined_name
from memwatch.capture.schema import ACCESSES, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.facts.places import Call
    from memwatch.capture.columns import IntArray
    from memwatch.kinds.edges import Edge

_MOST_COMPARED: Final = 8  # allocations, and ops, that are compared, the latest first; a guess
_FEWEST_REPEATS: Final = 2
"""Equal stretches of ops that show a loop of a single line. Three results of one pass with the same ops between them
would look like passes. No program of `tests/findings` has that."""


class Loops:
    """Answers about the passes of loops; two ops of one call stack are the same place of a loop."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._allocations = facts.allocations
        self._needed: dict[tuple[int, int], bool] = {}
        self._lines: dict[int, list[tuple[int, IntArray]]] = {}

    @cached_property
    def _stacks(self) -> IntArray:
        return self._facts.capture.tables["ops"]["stack"]

    @cached_property
    def _reads(self) -> NDArray[np.bool_]:
        """Per op: whether it reads a tensor."""
        uses = self._facts.capture.tables["uses"]
        reads = np.zeros(max(self._facts.capture.rows("ops"), 1), dtype=bool)
        reads[uses["op"][uses["access"] == ACCESSES.index("read")]] = True
        return reads

    @cached_property
    def _uses(self) -> tuple[IntArray, IntArray]:
        """The storages that ops read or write, in order, and those ops."""
        uses = self._facts.capture.tables["uses"]
        touched = np.flatnonzero(uses["access"] != ACCESSES.index("output"))
        touched = touched[np.argsort(uses["storage"][touched], kind="stable")]
        return uses["storage"][touched], uses["op"][touched]

    def is_computed(self, allocation: int) -> bool:
        """Return True if an op computed an allocation from other tensors, so that it could be computed later."""
        op = int(self._allocations.op[allocation])
        return op != NONE and bool(self._reads[op])

    def is_rebound(self, allocation: int, op: int) -> bool:
        """Return True if the line that made an allocation made another before `op`: its variable refers to that one."""
        made = self._allocations.op
        if made[allocation] == NONE:
            return False
        rows = np.flatnonzero((made > made[allocation]) & (made < op))
        return bool((self._stacks[made[rows]] == self._stacks[made[allocation]]).any())

    def next_made(self, allocation: int, after: int) -> int:
        """Return the first op after another op by which the line that made an allocation makes the next; -1 for none.

        Args:
            allocation: the allocation.
            after: the op.
        """
        made = int(self._allocations.op[allocation])
        if made == NONE or self._stacks[made] == NONE:
            return NONE
        later = self._allocations.op[self._allocations.op > max(after, made)]
        later = later[self._stacks[later] == self._stacks[made]]
        return int(later.min()) if len(later) else NONE

    def is_made_anew(self, allocation: int, op: int) -> bool:
        """Return True if the line that made an allocation makes an equal one at `op` or later, while this one lives."""
        allocations = self._allocations
        made = int(allocations.op[allocation])
        if made == NONE or self._stacks[made] == NONE:
            return False
        end = int(allocations.death_event[allocation])
        later = (allocations.op >= max(op, made + 1)) & (allocations.nbytes == allocations.nbytes[allocation])
        later &= allocations.storage != NONE
        later &= (allocations.birth_event <= end) if end != NONE else True
        rows = np.flatnonzero(later)
        return bool((self._stacks[allocations.op[rows]] == self._stacks[made]).any())

    def is_left_over(self, allocation: int, op: int) -> bool:
        """Return True if a new pass of the loop began between an allocation's last use and `op`."""
        last = int(self._facts.use_bounds.last_op[allocation])
        return last != NONE and self._jumps_back(int(self._allocations.op[allocation]), last, op)

    def is_of_earlier_pass(self, allocation: int, op: int) -> bool:
        """Return True if a new pass of the loop began between the birth of an allocation and `op`."""
        made = int(self._allocations.op[allocation])
        return self._jumps_back(made, made, op)

    def passes_of(self, allocations: list[int], op: int) -> int:
        """Return how many passes of a loop made some allocations.

        The outermost loop that has begun a further pass by `op` counts.
        """
        made = np.sort(self._allocations.op[allocations])
        made = made[(made != NONE) & (made <= op)]
        for line, lines_of_stack in self._lines_around(int(self._stacks[made[0]])) if len(made) else ():
            starts = self._starts_of_passes(line, lines_of_stack, int(made[0]), op)
            if len(starts):
                return len(np.unique(np.searchsorted(starts, made, side="right")))
        return 1

    def count_passes(self, ops: IntArray) -> int:
        """Return in how many passes some ops of one call stack ran. All loops around the ops count.

        A line may run several of the ops in one pass, as a transform of torch.func does. In a loop of a single line,
        Python never goes back to an earlier line. Its passes are found by their ops: each pass runs the same ones.
        """
        ops = np.sort(ops)
        starts = [np.array([], dtype=np.int64)]
        for line, lines_of_stack in self._lines_around(int(self._stacks[ops[0]])):
            starts.append(self._starts_of_passes(line, lines_of_stack, int(ops[0]), int(ops[-1])))
        bounds = np.searchsorted(ops, np.unique(np.concatenate(starts)))
        return sum(
            len(part) if self._repeats(part) else 1 for part in np.split(ops, np.unique(bounds)) if len(part)
        )

    def _repeats(self, ops: IntArray) -> bool:
        """Return True if the ops from each of some ops to the next have the same names, at least twice."""
        gaps = np.diff(ops)
        if len(gaps) < _FEWEST_REPEATS or (gaps != gaps[0]).any():
            return False
        names = self._facts.capture.tables["ops"]["name"][ops[0] : ops[-1]].reshape(len(gaps), -1)
        return bool((names == names[0]).all())

    def is_last_used_in_same_statement(self, allocation: int, op: int) -> bool:
        """Return True if the line that used an allocation last also runs `op`, and no other line ran in between."""
        last = int(self._facts.use_bounds.last_op[allocation])
        if not NONE < last < op or NONE in (self._stacks[last], self._stacks[op]):
            return False
        if (
            self._facts.op_phase(last) in IN_BACKWARD
        ):  # the op used autograd's reference, and not the variable
            return False
        if self._frames[int(self._stacks[last])] != self._frames[int(self._stacks[op])]:
            return False
        line, lines_of_stack = self._lines_around(int(self._stacks[op]))[-1]
        return bool((lines_of_stack[self._stacks[last : op + 1]] == line).all())

    def is_last_used_in_running_statement(self, allocation: int, op: int, variable: Edge) -> bool:
        """Return True if the statement of a variable's call that used an allocation last still runs while `op` does.

        The statement may call a model or a function, whose own lines change meanwhile.

        Args:
            allocation: the allocation.
            op: the op.
            variable: the variable of a call that holds the allocation.
        """
        last, owner = int(self._facts.use_bounds.last_op[allocation]), variable.owner
        if owner is None or not NONE < last < op or NONE in (self._stacks[last], self._stacks[op]):
            return False
        # a statement that ends with a backward can be split before it
        if any(self._facts.op_phase(each) in IN_BACKWARD for each in (last, op)):
            return False
        name = (owner.inner or owner).name
        depths = [
            depth
            for depth, call in enumerate(self._frames[int(self._stacks[last])])
            if call.file == owner.file and defined_name(call.function) == name
        ]
        if len(depths) != 1:  # of a recursive function, any of the calls may have the variable
            return False
        inside = [self._frames[int(self._stacks[each])][depths[0] + 1 :][:1] for each in (last, op)]
        # an argument of the statement that is computed first, as in `f(x.exp(), y)`, can be computed before it
        if not all(inside) or len({(call.file, call.function) for (call,) in inside}) != 1:
            return False
        line, lines_of_stack = self._lines_around(int(self._stacks[last]))[depths[0]]
        return bool((lines_of_stack[self._stacks[last : op + 1]] == line).all())

    def _jumps_back(self, made: int, first: int, last: int) -> bool:
        """Return True if Python went back to the line of op `made`, or to an earlier line, between two ops.

        The line may belong to any call around the op, because a function that is called again begins anew as well.
        """
        if made == NONE:
            return False
        return any(
            len(self._starts_of_passes(line, lines_of_stack, first, last))
            for line, lines_of_stack in self._lines_around(int(self._stacks[made]))
        )

    def _starts_of_passes(self, line: int, lines_of_stack: IntArray, first: int, last: int) -> IntArray:
        """Return the ops from `first` to `last` at which a call has gone back to a line, or to an earlier line.

        Args:
            line: the line.
            lines_of_stack: the line that the call has reached in each stack, as `_lines_around` returns it.
            first: the first op.
            last: the last op.
        """
        lines = lines_of_stack[self._stacks[first : last + 1]]
        places = np.flatnonzero(lines > 0)
        lines = lines[places]
        starts: IntArray = places[1:][(np.diff(lines) < 0) & (lines[1:] <= line)] + first
        return starts

    def _lines_around(self, stack: int) -> list[tuple[int, IntArray]]:
        """Return, for each call on a stack, its line on this stack, and its line on every stack; 0 if not there."""
        if stack == NONE:
            return []
        if stack not in self._lines:
            around = self._frames[stack]
            lines = np.zeros((len(around), len(self._frames) + 1), dtype=np.int64)  # the last is of no stack
            for number, frames in enumerate(self._frames):
                for depth, (mine, other) in enumerate(zip(around, frames, strict=False)):
                    if (mine.file, mine.function) == (other.file, other.function):
                        lines[depth, number] = other.line
                    if mine != other:
                        break
            self._lines[stack] = [(call.line, lines[depth]) for depth, call in enumerate(around)]
        return self._lines[stack]

    @cached_property
    def _frames(self) -> list[list[Call]]:
        """The frames of every stack, outermost first."""
        count = int(self._stacks.max(initial=NONE)) + 1
        return [self._facts.call_stacks.frames(stack)[::-1] for stack in range(count)]

    def is_needed_in_another_pass(self, allocation: int, op: int) -> bool:
        """Return True if passes of a loop read an allocation, or one like it, both before and after the place of `op`.

        Each pass of a loop reads a memory bank or a replay buffer. When the recording ends, no later pass reads the
        memory that the last pass keeps. The allocations of earlier passes show that a later pass would read it.
        """
        if (allocation, op) not in self._needed:
            self._needed[allocation, op] = self._is_read_around(allocation, op)
        return self._needed[allocation, op]

    def _is_read_around(self, allocation: int, op: int) -> bool:
        allocations, stacks = self._allocations, self._stacks
        made = int(allocations.op[allocation])
        if made == NONE or op < 0 or stacks[op] == NONE:
            return False
        starts, ends = _runs(stacks[: op + 1] == stacks[op])  # the ops of one backward have one stack
        places = np.minimum(starts[:-1] + op - starts[-1], ends[:-1])
        same = (allocations.op != NONE) & (allocations.op <= made)
        alike = np.flatnonzero(same & (allocations.nbytes == allocations.nbytes[allocation]))
        alike = alike[stacks[allocations.op[alike]] == stacks[made]]
        first, last = (bound[alike] for bound in self._facts.use_bounds)
        spans = np.searchsorted(places, last) - np.searchsorted(places, first)
        return any(
            self._is_used_on_both_sides(int(allocations.storage[other]), places)
            for other in alike[(first != NONE) & (spans > 0)][-_MOST_COMPARED:].tolist()
        )

    def _is_used_on_both_sides(self, storage: int, places: IntArray) -> bool:
        """Return True if the same calls use a storage before and after one of some ops."""
        storages, ops = self._uses
        used = np.unique(ops[slice(*np.searchsorted(storages, (storage, storage + 1)))])
        by = self._stacks[used]
        return any(
            not set(by[used < place].tolist()).isdisjoint(by[used > place].tolist())
            for place in places[-_MOST_COMPARED:].tolist()
        )


def _runs(mask: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return the first and the last place of each run of True."""
    edges = np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
