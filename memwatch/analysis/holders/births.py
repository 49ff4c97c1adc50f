"""Births by call stack: what the same calls make again and again, as the passes of a loop do."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray

_NO_OPS: Final = np.zeros(0, dtype=np.int64)
_MOST_ALIKE: Final = 8


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

    def generation(self, allocation: int, op: int) -> int:
        """Return how many times the calls that made an allocation made another by the time an op runs."""
        ops = self._ops_by_stack.get(self.stack(allocation), _NO_OPS)
        made = int(self._made[allocation])
        return int(np.searchsorted(ops, op, side="right") - np.searchsorted(ops, made, side="right"))

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
