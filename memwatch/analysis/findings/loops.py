"""Passes of loops: whether the calls that made an allocation make another, and whether later passes read it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray

_MOST_COMPARED: Final = 8


class Loops:
    """Answers about the passes of loops; two ops of one call stack are the same place of a loop."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._allocations = facts.allocations
        self._needed: dict[tuple[int, int], bool] = {}

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

    def is_computed(self, allocation: int) -> bool:
        """Return True if an op computed it from other tensors, so that it could be computed later."""
        op = int(self._allocations.op[allocation])
        return op != NONE and bool(self._reads[op])

    def is_rebound(self, allocation: int, op: int) -> bool:
        """Return True if the line that made it made another before `op`: its variable holds that one now."""
        made = self._allocations.op
        if made[allocation] == NONE:
            return False
        rows = np.flatnonzero((made > made[allocation]) & (made < op))
        return bool((self._stacks[made[rows]] == self._stacks[made[allocation]]).any())

    def is_made_anew(self, allocation: int, op: int) -> bool:
        """Return True if the same line makes the same again after `op`, and this one is still alive then."""
        allocations = self._allocations
        made = int(allocations.op[allocation])
        if made == NONE or self._stacks[made] == NONE:
            return False
        end = int(allocations.death_event[allocation])
        later = (allocations.op > max(op, made)) & (allocations.nbytes == allocations.nbytes[allocation])
        later &= allocations.storage != NONE
        later &= (allocations.birth_event <= end) if end != NONE else True
        rows = np.flatnonzero(later)
        return bool((self._stacks[allocations.op[rows]] == self._stacks[made]).any())

    def is_needed_in_another_pass(self, allocation: int, op: int) -> bool:
        """Return True if it, or another that the same calls made, is read both before and after this place of a loop.

        A memory bank or a replay buffer is read in each pass of a loop. That the recording ends after some pass does
        not make useless what the last one keeps.
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
        uses = self._facts.capture.tables["uses"]
        made = uses["access"] == ACCESSES.index("output")
        used = np.unique(uses["op"][(uses["storage"] == storage) & ~made])
        by = self._stacks[used]
        return any(
            not set(by[used < place].tolist()).isdisjoint(by[used > place].tolist())
            for place in places[-_MOST_COMPARED:].tolist()
        )


def _runs(mask: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Return the first and the last place of each run of True."""
    edges = np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
