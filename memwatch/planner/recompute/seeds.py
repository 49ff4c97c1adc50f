"""Find checkpointed schedules from which the search for recomputes starts.

The turning point of a program is the op after the peak. In a training step the backward begins there. The part before
it is cut into stages. `seeds` chooses the stages to recompute with the rotor dynamic program. `even_seeds` chooses them
by fixed rules, and needs no kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call
from memwatch.planner.peak import Schedule, allocations, live_curve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph, IntArray


class RotorTable:
    """The cheapest schedules of a chain of stages, for every amount of memory.

    A chain runs its stages in order (the forward) and then reverses them from the last to the first (the backward).
    Stage i computes checkpoint i from checkpoint i - 1. Reversing a stage needs everything that the stage saves. If a
    schedule keeps a checkpoint, the checkpoint stays until all stages after it are reversed. (Such schedules are called
    persistent.) The input of the first stage takes no memory. See Beaumont et al., "Optimal checkpointing for
    heterogeneous chains" (2019).

    Args:
        costs: the cost of computing each stage.
        checkpoint_slots: the memory of each stage's checkpoint (slots).
        saved_slots: the memory of everything that the stage saves (slots).
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
        """Return the lowest cost of recomputes with so much memory; infinite if the memory does not suffice."""
        return float(self._best[0, self._length - 1, slots])

    def steps(self, slots: int) -> list[tuple[str, int]]:
        """Return the schedule: ``("forward", stage)`` and ``("backward", stage)``; empty if there is none."""
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
            if split == first:  # everything that this stage saves is kept
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
    """Solve every part of the chain (first stage, last stage) for every amount of memory.

    Returns:
        The extra cost, which is infinite if the memory does not suffice; and the choice. The choice is the first stage
        itself if everything that it saves is kept. Otherwise it is the stage whose input is the next kept checkpoint.
        It is -1 if the memory does not suffice.
    """
    shape = (len(costs), len(costs), slots + 1)
    best, choice = np.full(shape, np.inf), np.full(shape, -1, np.int64)
    call("fill_rotor", (costs, checkpoint, saved, slots, best, choice))
    return best, choice


# These numbers are guesses. The table of the dynamic program has stages^2 x slots entries.
_MOST_STAGES = 120
_SLOTS = 200  # the table counts memory in slots: the budget has so many
_TRIES = 10  # how many amounts of memory for checkpoints are tried
_FEW_SLOTS = 40  # if each slot is one byte, and the budget has at most so many, all amounts are tried
_EVEN_STAGES = (2, 4, 8, 16, 32, 64)  # numbers of stages that `even_seeds` tries


class Stages(NamedTuple):
    """The part of a program up to its turning point, cut into stages. Each array has one entry per stage.

    The cuts are at places where later ops of this part need few bytes.

    Attributes:
        bounds: stage i consists of the ops from `bounds[i]` to `bounds[i + 1] - 1`.
        cost: the cost of the ops.
        checkpoint_bytes: bytes that this stage and earlier stages make and later stages need.
        saved_bytes: bytes that this stage makes and ops after the turning point need.
        first_user: the first op after the turning point that needs a buffer of this stage; the number of ops if there
            is no such op.
    """

    bounds: IntArray
    cost: NDArray[np.float64]
    checkpoint_bytes: IntArray
    saved_bytes: IntArray
    first_user: IntArray


def seeds(graph: Graph, budget_bytes: int) -> list[IntArray]:
    """Return checkpointed schedules of the program as op numbers; an empty list if it has fewer than two stages.

    Args:
        graph: the program.
        budget_bytes: the bytes to stay below, external buffers included. Some schedules use more.
    """
    found: list[IntArray] = []
    for most in (_MOST_STAGES, min(_MOST_STAGES // 2, max(2, int(np.sqrt(graph.num_ops))))):
        stages = cut_into_stages(graph, most)
        if stages is None or len(stages.cost) < 2:
            continue
        found += _rotor_seeds(graph, stages, budget_bytes)
    return found


def even_seeds(graph: Graph) -> Iterator[IntArray]:
    """Yield checkpointed schedules of the program as op numbers. No kernel is needed.

    Each schedule keeps everything that its last stages save, and computes its other stages again. The first schedules
    have few stages. Among schedules with the same number of stages, the first keeps only the last stage.
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
    """Return at most `most` stages of the program up to its peak; None if no op up to there makes a buffer."""
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
    return Stages(bounds, cost, checkpoint, saved_bytes, first_user)


def _uses_around(graph: Graph, turn: int) -> tuple[IntArray, IntArray]:
    """Return the last use of every buffer before the turning point, and its first use from there on.

    A buffer without such a use has -1, or the number of ops.
    """
    users, buffers = graph.users.indices, graph.users.row_ids()
    last_early = np.full(graph.num_buffers, -1, dtype=np.int64)
    first_late = np.full(graph.num_buffers, graph.num_ops, dtype=np.int64)
    early = users < turn
    np.maximum.at(last_early, buffers[early], users[early])
    np.minimum.at(first_late, buffers[~early], users[~early])
    return last_early, first_late


def _choose_bounds(crossing: IntArray, saved: IntArray, most: int) -> IntArray:
    """Return the bounds of the stages.

    First the stages are chosen so that each saves about the same number of bytes. Then each bound moves to the place
    nearby that the fewest bytes cross.
    """
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
    # the table does not count the memory that ops need while they run, so try smaller amounts for checkpoints too
    num_tries = slots + 1 if exact and slots <= _FEW_SLOTS else min(_TRIES, slots + 1)
    tries = np.unique(np.linspace(slots, 0, num_tries).astype(int))
    seen: dict[bytes, IntArray] = {}
    for free in tries[::-1].tolist():
        steps = table.steps(free)
        if steps:
            tokens = _tokens(graph, stages, steps)
            seen.setdefault(tokens.tobytes(), tokens)
    return list(seen.values())


def _tokens(graph: Graph, stages: Stages, steps: list[tuple[str, int]]) -> IntArray:
    """Return the schedule of a chain as ops of the program.

    When a stage runs again, the ops that may not run again are left out. The ops after the turning point belong to no
    stage. `("backward", stage)` runs the next of them, up to the first op that needs an earlier stage.
    """
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
        until = max(late, int(stages.first_user[:stage].min(initial=graph.num_ops)))
        tokens += range(late, until)
        late = until
    tokens += range(late, graph.num_ops)
    return np.array(tokens, dtype=np.int64)
