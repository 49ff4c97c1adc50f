"""What a schedule does differently from the program, in words: recomputes, offloads, reloads, a new order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.schedule import StepKind
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph
    from memwatch.planner.schedule import Schedule


def describe_moves(graph: Graph, schedule: Schedule) -> list[str]:
    """Return one line per difference between a schedule and the program, in the order of the steps."""
    steps = list(schedule)
    copies = schedule.copies().tolist()
    following = _next_first_runs(graph, schedule)
    lines = []
    for position, (kind, target) in enumerate(steps):
        before = following[position]
        where = f"before {before}" if before else "at the end"
        if kind == StepKind.COMPUTE and copies[position]:
            lines.append(f"recompute {graph.op_names[target]} (cost {graph.op_cost[target]:g}) {where}")
        elif kind != StepKind.COMPUTE:
            size = format_bytes(int(graph.buffer_nbytes[target]))
            verb = "offload" if kind == StepKind.OFFLOAD else "reload"
            lines.append(f"{verb} {graph.buffer_names[target]} ({size}) {where}")
    first_runs = schedule.ops[schedule.copies()[schedule.kind == StepKind.COMPUTE] == 0]
    # the fewest ops that have to change place are those outside the longest run that kept its order
    displaced = len(first_runs) - _longest_increasing(first_runs.tolist())
    if displaced:
        lines.insert(0, f"run {displaced} of {graph.num_ops} ops at another place")
    return lines


def _next_first_runs(graph: Graph, schedule: Schedule) -> list[object]:
    """Return for every step the name of the next op that runs for the first time, None at the end."""
    following: list[object] = []
    name: object = None
    copies = schedule.copies()
    for position in range(len(schedule) - 1, -1, -1):
        following.append(name)
        if schedule.kind[position] == StepKind.COMPUTE and copies[position] == 0:
            name = graph.op_names[schedule.index[position]]
    return following[::-1]


def _longest_increasing(numbers: list[int]) -> int:
    """Return the length of the longest increasing subsequence, by patience sorting."""
    # tails[k] is the smallest number that an increasing subsequence of length k + 1 can end with
    tails = np.full(len(numbers) + 1, np.iinfo(np.int64).max)
    length = 0
    for number in numbers:
        place = int(np.searchsorted(tails[:length], number))
        tails[place] = number
        length = max(length, place + 1)
    return length
