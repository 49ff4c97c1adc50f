"""Schedules to start from: the forward is cut into stages, and the rotor dynamic program chooses the recomputes.

The turning point is the step after the peak. In a training step that is where the backward begins.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call
from memwatch.planner.peak import Schedule, allocations, live_curve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph, IntArray


# Solve chains exactly. A chain is a forward of stages in a row, and a backward that runs them in reverse.
#
# Revolve solves chains of equal stages; the rotor dynamic program solves chains of any costs and sizes.
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


# stages; a guess, as the next two: the table of the dynamic program has stages^2 x slots entries
_MOST_STAGES = 120
_SLOTS = 200  # units of memory per budget
_TRIES = 10  # amounts of memory for checkpoints that are tried
_EVEN_STAGES = (2, 4, 8, 16, 32, 64)


class Stages(NamedTuple):
    """The first part of a program, up to its turning point, cut where few bytes cross."""

    bounds: IntArray  # stage i holds the ops from bounds[i] to before bounds[i + 1]
    cost: NDArray[np.float64]
    checkpoint_bytes: IntArray  # bytes that later ops of the first part need from the stages up to here
    saved_bytes: IntArray  # bytes that ops after the turning point need from this stage
    first_user: IntArray  # first op after the turning point that needs a buffer of this stage


def seeds(graph: Graph, budget_bytes: int) -> list[IntArray]:
    """Return checkpointed schedules of the program, as tokens; an empty list where it has no stages.

    Args:
        graph: the program.
        budget_bytes: bytes that the schedules should use, external buffers included; some use more.
    """
    found: list[IntArray] = []
    for most in (_MOST_STAGES, min(_MOST_STAGES // 2, max(2, int(np.sqrt(graph.num_ops))))):
        stages = cut_into_stages(graph, most)
        if stages is None or len(stages.cost) < 2:
            continue
        found += _rotor_seeds(graph, stages, budget_bytes)
    return found


def even_seeds(graph: Graph) -> Iterator[IntArray]:
    """Yield checkpointed schedules of the program, as tokens, without the dynamic program, which is a kernel.

    The forward has few stages first, then more. Of every number of stages, the last stages keep what they save, first
    one of them, then more. The others are computed again.
    """
    for most in _EVEN_STAGES:
        stages = cut_into_stages(graph, most)
        num = 0 if stages is None else len(stages.cost)
        for kept in sorted({max(1, num * quarters // 4) for quarters in range(4)}):
            if stages is None or kept >= num:
                continue
            steps = [("forward", stage) for stage in range(num)]
            steps += [("backward", stage) for stage in reversed(range(num - kept, num))]
            for stage in reversed(range(num - kept)):
                steps += [("forward", stage), ("backward", stage)]
            yield _tokens(graph, stages, steps)


def cut_into_stages(graph: Graph, most: int) -> Stages | None:
    """Return at most `most` stages of the program up to its peak; None if no buffer waits across the peak."""
    program = Schedule.from_order(np.arange(graph.num_ops))
    turn = live_curve(graph, program, allocations(graph, program)).peak_step + 1
    made = np.flatnonzero((graph.buffer_producer >= 0) & (graph.buffer_producer < turn))
    if turn < 2 or not len(made):
        return None
    last_early, first_late = _uses_around(graph, turn)
    producer = graph.buffer_producer[made]
    nbytes = graph.buffer_nbytes[made]
    change = np.zeros(turn + 1, dtype=np.int64)
    np.add.at(change, producer, nbytes)
    np.subtract.at(change, np.maximum(last_early[made], producer), nbytes)
    crossing = np.cumsum(change)[:turn]
    saved = np.where(first_late[made] < graph.num_ops, nbytes, 0)
    bounds = _choose_bounds(crossing, np.bincount(producer, weights=saved, minlength=turn), most)
    stage = np.searchsorted(bounds, producer, side="right") - 1
    num = len(bounds) - 1
    first_user = np.full(num, graph.num_ops, dtype=np.int64)
    np.minimum.at(first_user, stage, first_late[made])
    cost = np.add.reduceat(graph.op_cost[:turn], bounds[:-1])
    saved_bytes = np.bincount(stage, weights=saved, minlength=num).astype(np.int64)
    checkpoint = crossing[bounds[1:] - 1]
    return Stages(bounds, cost, checkpoint, np.maximum(saved_bytes, 0), first_user)


def _uses_around(graph: Graph, turn: int) -> tuple[IntArray, IntArray]:
    """Return the last use of every buffer before the turning point, and the first use after it."""
    users, buffers = graph.users.indices, graph.users.row_ids()
    last_early = np.full(graph.num_buffers, -1, dtype=np.int64)
    first_late = np.full(graph.num_buffers, graph.num_ops, dtype=np.int64)
    early = users < turn
    np.maximum.at(last_early, buffers[early], users[early])
    np.minimum.at(first_late, buffers[~early], users[~early])
    return last_early, first_late


def _choose_bounds(crossing: IntArray, saved: IntArray, most: int) -> IntArray:
    """Return the cuts: where few bytes cross, at about equal distances in saved bytes."""
    turn = len(crossing)
    target = np.cumsum(saved) / max(float(saved.sum()), 1.0)
    bounds = [0]
    for part in range(1, min(most, turn)):
        low, high = np.searchsorted(target, [(part - 0.5) / most, (part + 0.5) / most])
        if turn <= most:
            low, high = part - 1, part
        low, high = max(int(low), bounds[-1]), min(int(high), turn - 1)
        if low < high:
            window = crossing[low:high]
            bounds.append(low + int(np.flatnonzero(window == window.min())[-1]) + 1)
    if bounds[-1] != turn:
        bounds.append(turn)
    return np.array(bounds, dtype=np.int64)


def _rotor_seeds(graph: Graph, stages: Stages, budget_bytes: int) -> list[IntArray]:
    room = max(budget_bytes - graph.baseline_bytes, 0)
    exact = room <= _SLOTS
    slot = 1.0 if exact else room / _SLOTS
    slots = int(room / slot)
    checkpoint = np.ceil(stages.checkpoint_bytes / slot).astype(np.int64)
    saved = np.ceil(stages.saved_bytes / slot).astype(np.int64)
    table = RotorTable(stages.cost, checkpoint, saved, slots)
    # the table lacks the working sets of ops, so several amounts for checkpoints are tried
    tries = np.unique(
        np.linspace(slots, 0, min(_TRIES, slots + 1) if not exact or slots > 40 else slots + 1).astype(int)
    )
    seen: dict[bytes, IntArray] = {}
    for free in tries[::-1].tolist():
        steps = table.steps(free)
        if steps:
            tokens = _tokens(graph, stages, steps)
            seen.setdefault(tokens.tobytes(), tokens)
    return list(seen.values())


def _tokens(graph: Graph, stages: Stages, steps: list[tuple[str, int]]) -> IntArray:
    """Return the schedule of a chain as ops of the program. Runs after the first leave out ops that may not repeat."""
    turn = int(stages.bounds[-1])
    may_repeat = (graph.op_recomputable & (graph.writes.lengths() == 0)).tolist()
    late = turn
    done = 0
    tokens: list[int] = []
    for what, stage in steps:
        ops = range(int(stages.bounds[stage]), int(stages.bounds[stage + 1]))
        if what == "forward":
            if stage >= done:
                tokens += ops
                done = stage + 1
            else:
                tokens += [op for op in ops if may_repeat[op]]
            continue
        # a backward step: all ops that can run before a buffer of an earlier stage is needed
        until = max(late, int(stages.first_user[:stage].min(initial=graph.num_ops)))
        tokens += range(late, until)
        late = until
    tokens += range(late, graph.num_ops)
    return np.array(tokens, dtype=np.int64)
