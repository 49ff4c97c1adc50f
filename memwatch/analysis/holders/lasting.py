"""Decide whether a reference that a sample saw also holds its memory while another op runs.

The births of each call stack show what the same calls make again and again, as the passes of a loop do.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.holder import Holder, twin_of
from memwatch.analysis.holders.paths import HolderPath
from memwatch.analysis.holders.running import CallState, RunningCalls, common_call
from memwatch.capture.schema import IN_BACKWARD, NONE
from memwatch.kinds.edges import EdgeKind, Vertex
from memwatch.kinds.holders import HolderKind, Inference

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_NO_OPS: Final = np.zeros(0, dtype=np.int64)
_MOST_ALIKE: Final = 8
"""Allocations of the same calls that are compared, those made next to the allocation first. A guess."""


class Births:
    """The ops that made allocations, by their call stack."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._made = facts.allocations.op
        self._stacks: IntArray = facts.capture.tables["ops"]["stack"]

    def stack(self, allocation: int) -> int:
        """Return the number of the call stack that made an allocation, -1 if none is known."""
        made = int(self._made[allocation])
        return int(self._stacks[made]) if NONE < made < len(self._stacks) else NONE

    @cached_property
    def _ops_by_stack(self) -> dict[int, IntArray]:
        """The ops that made storages, each once and in order, by call stack."""
        made = np.unique(self._made[: self._facts.allocations.named])
        made = made[(made != NONE) & (made < len(self._stacks))]
        return _grouped(made, self._stacks[made])

    def alike(self, allocation: int) -> list[int]:
        """Return an allocation and others that the same calls made, those made next to it first."""
        stack, made = self.stack(allocation), self._made
        rows = self._rows_by_stack.get(stack, _NO_OPS) if stack != NONE else _NO_OPS
        order = np.argsort(np.abs(made[rows] - made[allocation]), kind="stable")
        nearest: list[int] = rows[order][:_MOST_ALIKE].tolist()
        return nearest or [allocation]

    @cached_property
    def _rows_by_stack(self) -> dict[int, IntArray]:
        """The storages that ops made, by call stack."""
        made = self._made[: self._facts.allocations.named]
        rows = np.flatnonzero((made != NONE) & (made < len(self._stacks)))
        return _grouped(rows, self._stacks[made[rows]])

    def alive_alike(self, allocation: int, op: int) -> IntArray:
        """Return the allocations of the same calls and op name that are alive while an op runs, the oldest first."""
        stack, made = self.stack(allocation), self._made
        rows = self._rows_by_stack.get(stack, _NO_OPS) if stack != NONE else _NO_OPS
        ops, allocations = self._facts.capture.tables["ops"], self._facts.allocations
        rows = rows[(made[rows] <= op) & (ops["name"][made[rows]] == ops["name"][made[allocation]])]
        death_ns = allocations.death_ns[rows]
        alive: IntArray = rows[(death_ns == NONE) | (death_ns > ops["start_ns"][op])]
        return alive[np.argsort(made[alive], kind="stable")]

    def generation(self, allocation: int, op: int) -> int:
        """Return how many times the calls that made an allocation made another by the time an op runs."""
        ops = self._ops_by_stack.get(self.stack(allocation), _NO_OPS)
        made = int(self._made[allocation])
        return int(np.searchsorted(ops, op, side="right") - np.searchsorted(ops, made, side="right"))

    def generations(self, allocations: IntArray, ops: IntArray) -> IntArray:
        """Return `generation` for each of some allocations and an op of its own."""
        found = np.zeros(len(allocations), dtype=np.int64)
        made = self._made[allocations]
        is_known = (made > NONE) & (made < len(self._stacks))
        stacks = np.full(len(made), NONE, dtype=np.int64)
        stacks[is_known] = self._stacks[made[is_known]]
        for stack in np.unique(stacks).tolist():
            of_stack, is_one = self._ops_by_stack.get(stack, _NO_OPS), stacks == stack
            found[is_one] = np.searchsorted(of_stack, ops[is_one], side="right") - np.searchsorted(
                of_stack, made[is_one], side="right"
            )
        return found

    def made_again(self, allocation: int, after: int, before: int) -> bool:
        """Return True if the calls that made an allocation made another between two ops."""
        stack = self.stack(allocation)
        if stack == NONE:
            return False
        ops = self._ops_by_stack.get(stack, _NO_OPS)
        first = max(after, int(self._made[allocation])) + 1
        return bool(np.searchsorted(ops, before) > np.searchsorted(ops, first))


def _grouped(values: IntArray, groups: IntArray) -> dict[int, IntArray]:
    """Return values by group, in the given order."""
    order = np.argsort(groups, kind="stable")
    numbers, first = np.unique(groups[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(values[order], first[1:]), strict=True)) if len(values) else {}


class TorchRuns:
    """The rows of the recorded table `torch_runs`: each is a backward, a part of one, or the step of an optimizer."""

    def __init__(self, capture: Capture) -> None:
        runs = capture.tables["torch_runs"]
        self._start_op, self._end_op = runs["start_op"], runs["end_op"]
        self._known: dict[int, range | None] = {}

    def around(self, op: int) -> range | None:
        """Return the ops of the innermost recorded run that an op belongs to, or None."""
        # thousands of tensors have holders at one op
        if op not in self._known:
            self._known[op] = self._find_around(op)
        return self._known[op]

    def _find_around(self, op: int) -> range | None:
        rows = np.flatnonzero((self._start_op <= op) & (op < self._end_op))
        if not len(rows):
            return None
        row = rows[np.argmax(self._start_op[rows])]
        return range(int(self._start_op[row]), int(self._end_op[row]))


class LastingReferences:
    """Carries what a sample saw over to another op: as seen, as inferred, or not at all."""

    def __init__(self, facts: Facts, births: Births) -> None:
        self._facts, self._births = facts, births
        self._made = facts.allocations.op
        self._running = RunningCalls(facts)
        self.torch_runs = TorchRuns(facts.capture)

    def of_itself(self, holder: Holder, allocation: int, seen_op: int, op: int) -> Holder | None:
        """Return a holder that was seen in the middle of one op as the holder while another op runs.

        It was seen in that op alone. For another op it is inferred.

        Returns:
            None if its variable belongs to a call that does not run then, or that cannot have set it yet.
        """
        if holder.kind is HolderKind.EVALUATION_STACK:
            return self._on_stack(holder, allocation, op)
        run = self.torch_runs.around(op)
        # in the last op of a run, the sample may have been taken after the op, while a hook ran
        is_last = run is not None and op == run.stop - 1
        if seen_op == op and not is_last and not HolderPath(holder.edges).may_be_from_earlier_sample:
            return holder
        if self._is_unchanged(holder, allocation, seen_op, op):
            return holder
        state = self._state(holder, allocation, seen_op, op)
        if state is CallState.ENDED:
            return None
        if seen_op > op:
            return None if self._is_not_yet_set(holder, allocation, op) else holder.inferred(Inference.LATER)
        path = HolderPath(holder.edges)
        is_rebound = path.is_direct and not path.is_graph and not path.ends_in_container
        if is_rebound and self._births.made_again(allocation, seen_op, op):
            return None
        return holder.inferred(Inference.EARLIER)  # a `del` since then would not show

    def count_of_calls(self, holder: Holder, op: int) -> int:
        """Return how many running calls may have the variable that a holder's path starts from; 1 for a global."""
        call = _call_of(holder)
        return 1 if call is None else self._running.count(call, op)

    def _is_unchanged(self, holder: Holder, allocation: int, seen_op: int, op: int) -> bool:
        """Return True for a variable that no code could have set between an op and the later op at which it was seen.

        Only torch's own code ran in between, and the memory is older than that run. A hook may put a new gradient into
        a variable. But the call of the variable waits for torch, so the variable keeps its old tensor.
        """
        run = self.torch_runs.around(op)
        if run is None or not op <= seen_op < run.stop or not NONE <= int(self._made[allocation]) < run.start:
            return False
        path, call = HolderPath(holder.edges), _call_of(holder)
        if not path.is_direct or path.is_graph or not path.head.kind.row.is_variable:
            return False
        return call is None or self._running.waits(call, seen_op, run)

    def _state(self, holder: Holder, allocation: int, seen_op: int, op: int) -> CallState:
        """Return whether the call of a holder's variable, seen by a sample, runs while `op` does.

        If this is unknown, and the call itself made the allocation, assume that the call has ended: a further call of
        the function would have made an allocation of its own.
        """
        call, made = _call_of(holder), int(self._made[allocation])
        if call is None:
            return CallState.RUNS
        state = self._running.state(call, seen_op, op)
        if state is CallState.UNKNOWN and made != NONE and self._running.is_made_in(call, seen_op, made):
            return CallState.ENDED
        return state

    def of_twin(
        self, holder: Holder, allocation: int, op: int, *, twin_age: int | None = None
    ) -> Holder | None:
        """Return the holder of another allocation that the same calls made, as the holder of this allocation.

        Args:
            holder: the seen holder of the other one.
            allocation: the piece of memory.
            op: the op during which it is held.
            twin_age: ops from the birth of the other one to the sample. A holder at that age also holds this one if
                this one is as old.
        """
        if holder.kind is HolderKind.EVALUATION_STACK:
            return self._on_stack(holder, allocation, op)
        call = _call_of(holder)
        if call is None or call.thread or not self._running.has_stack(op):
            return twin_of(holder)
        made = int(self._made[allocation])
        is_as_old = twin_age is not None and op - made >= twin_age and not self._is_in_one_backward(made, op)
        is_gone = not self._running.on_stack(call, op, variable=HolderPath(holder.edges).head.name)
        is_early = not is_as_old and self._is_not_yet_set(holder, allocation, op)
        return None if is_gone or is_early else twin_of(holder)

    def _is_not_yet_set(self, holder: Holder, allocation: int, op: int) -> bool:
        """Return True if the statement that made an allocation may still run: no local variable has its result."""
        made, call = int(self._made[allocation]), _call_of(holder)
        if (
            call is None
            or made == NONE
            or made > op
            or HolderPath(holder.edges).head.kind is not EdgeKind.LOCAL
        ):
            return False
        again = self._births.made_again(allocation, made, op + 1) and not self._is_in_one_backward(made, op)
        return not again and self._running.is_unfinished(call, made, op)

    def _is_in_one_backward(self, made: int, op: int) -> bool:
        """Return True if only backward ran from one op to another: its ops have one call stack."""
        if NONE in (made, op):
            return False
        ops = self._facts.capture.tables["ops"]
        in_backward = np.isin(ops["phase"][made : op + 1], IN_BACKWARD).all()
        return bool(in_backward and ops["stack"][made] == ops["stack"][op])

    def _on_stack(self, holder: Holder, allocation: int, op: int) -> Holder | None:
        """Return an unnamed value as one on the stack of the innermost call that made it and still runs."""
        call = common_call(self._facts, allocation, op)
        if call is None or self._is_of_earlier_pass(holder, allocation, op):
            return None
        placed = holder.on_stack_of(call.function, call.site, is_own=call.is_own)
        return placed.inferred(Inference.SAME_CALL)

    def _is_of_earlier_pass(self, holder: Holder, allocation: int, op: int) -> bool:
        """Return True for a bare value of a statement that has run again since, and does not run any more."""
        if HolderPath(holder.edges).head.name is not None:
            return False  # a list or an iterator, which was seen
        now = int(self._facts.capture.tables["ops"]["stack"][op])
        return bool(self._births.generation(allocation, op)) and now != self._births.stack(allocation)


def _call_of(holder: Holder) -> Vertex | None:
    """Return the call whose variable a holder's path starts from; None for a global and the like."""
    head = HolderPath(holder.edges).head
    return head.owner if head.kind.row.is_call_variable else None
