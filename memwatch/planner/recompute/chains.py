"""Solve chains exactly. A chain is a forward of stages in a row, and a backward that runs them in reverse.

Revolve solves chains of equal stages; the rotor dynamic program solves chains of any costs and sizes.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.native.calls import call

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray


def revolve_forwards(length: int, snapshots: int) -> int:
    """Return the fewest forward steps that reverse a uniform chain.

    The formula is from Griewank & Walther, Algorithm 799 (2000): r * l - beta(c + 1, r - 1). Here beta(c, r) is
    C(c + r, c), and r is the integer with beta(c, r - 1) < l <= beta(c, r).

    Args:
        length: steps of the chain, l.
        snapshots: states that may be stored, the initial one included, c.
    """
    if length < 1 or snapshots < 1:
        raise ValueError(f"a chain of {length} steps with {snapshots} snapshots; both must be at least 1")
    rounds = 0
    while comb(snapshots + rounds, snapshots) < length:
        rounds += 1
    return rounds * length - comb(snapshots + rounds, snapshots + 1) if rounds else 0


def revolve_steps(length: int, snapshots: int) -> list[tuple[str, int]]:
    """Return a reversal of a uniform chain with the fewest forward steps.

    Args:
        length: steps of the chain.
        snapshots: states that may be stored, the initial one included.

    Returns:
        ``("forward", i)``: compute state i + 1 from state i; ``("store", i)`` and ``("drop", i)``: keep and
        drop a snapshot of state i; ``("adjoint", i)``: reverse step i, which needs state i.
    """
    steps: list[tuple[str, int]] = [("store", 0)]
    # (first, last, snapshots): reverse the steps from first to before last, whose first state is stored
    waiting: list[tuple[int, int, int] | tuple[int]] = [(0, length, snapshots)]
    while waiting:
        task = waiting.pop()
        if len(task) == 1:
            steps.append(("drop", task[0]))
            continue
        first, last, free = task
        if last - first == 1:
            steps.append(("adjoint", first))
            continue
        middle = first + _revolve_split(last - first, free) if free > 1 else last - 1
        steps += [("forward", state) for state in range(first, middle)]
        if free == 1:
            steps.append(("adjoint", middle))
            waiting.append((first, middle, 1))
            continue
        steps.append(("store", middle))
        waiting += [(first, middle, free), (middle,), (middle, last, free - 1)]
    return [*steps, ("drop", 0)]


def _revolve_split(length: int, snapshots: int) -> int:
    """Return the number of steps to advance before the next snapshot."""
    return min(
        range(1, length),
        key=lambda k: k + revolve_forwards(length - k, snapshots - 1) + revolve_forwards(k, snapshots),
    )


class RotorTable:
    """The cheapest persistent schedules of a chain of stages, for every amount of memory.

    Beaumont et al., "Optimal checkpointing for heterogeneous chains" (2019). Stage i turns checkpoint
    i - 1 into checkpoint i; reversing it needs all that it saves. The input of the first stage is free.

    Args:
        costs: price of computing every stage.
        checkpoint_slots: memory (slots) that each stage's output takes.
        saved_slots: memory (slots) that all it saves takes, its output included.
        slots: the most memory to solve for (slots).
    """

    def __init__(
        self, costs: NDArray[np.float64], checkpoint_slots: IntArray, saved_slots: IntArray, slots: int
    ) -> None:
        self._length = len(costs)
        self._saved = saved_slots
        self._best, self._choice = fill_rotor_table(
            np.ascontiguousarray(costs, dtype=np.float64),
            np.ascontiguousarray(checkpoint_slots, dtype=np.int64),
            np.ascontiguousarray(saved_slots, dtype=np.int64),
            slots,
        )
        self._checkpoint = checkpoint_slots

    def extra_cost(self, slots: int) -> float:
        """Return the cost of recomputes with so much memory; infinite when the memory does not suffice."""
        return float(self._best[0, self._length - 1, slots])

    def steps(self, slots: int) -> list[tuple[str, int]]:
        """Return the schedule: ``("forward", stage)`` and ``("backward", stage)``; none when impossible."""
        if not np.isfinite(self.extra_cost(slots)):
            return []
        steps: list[tuple[str, int]] = []
        waiting: list[tuple[int, int, int] | tuple[int]] = [(0, self._length - 1, slots)]
        while waiting:
            task = waiting.pop()
            if len(task) == 1:
                steps.append(("backward", task[0]))
                continue
            first, last, free = task
            split = int(self._choice[first, last, free])
            if split == first:  # all that this stage saves is kept
                steps.append(("forward", first))
                waiting.append((first,))
                if first < last:
                    waiting.append((first + 1, last, free - int(self._saved[first])))
                continue
            steps += [("forward", stage) for stage in range(first, split)]
            waiting += [(first, split - 1, free), (split, last, free - int(self._checkpoint[split - 1]))]
        return steps


def fill_rotor_table(
    costs: NDArray[np.float64], checkpoint: IntArray, saved: IntArray, slots: int
) -> tuple[NDArray[np.float64], IntArray]:
    """Return the cheapest way for every part of the chain and every amount of memory.

    Returns:
        The extra cost, infinite where memory does not suffice, and the choice: `first` where all that it saves
        is kept, otherwise `split`.
    """
    shape = (len(costs), len(costs), slots + 1)
    best, choice = np.full(shape, np.inf), np.full(shape, -1, np.int64)
    call("fill_rotor", (costs, checkpoint, saved, slots, best, choice))
    return best, choice
