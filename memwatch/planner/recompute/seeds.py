"""Schedules to start from: the forward is cut into stages, and the rotor dynamic program chooses the recomputes.

The turning point is the step after the peak. In a training step that is where the backward begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.peak import allocations, live_curve
from memwatch.planner.recompute.chains import RotorTable
from memwatch.planner.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.graph import Graph

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
