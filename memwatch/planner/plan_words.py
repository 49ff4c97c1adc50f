"""A plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.schedule import StepKind
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph
    from memwatch.planner.plan import Plan
    from memwatch.planner.schedule import Schedule

_SHOWN_MOVES = 12


def describe_moves(graph: Graph, schedule: Schedule) -> list[str]:
    """List what a schedule does differently from the program, in the order it happens."""
    steps = list(schedule)
    copies = schedule.copies().tolist()
    following = _next_new_op(graph, schedule)
    words = []
    for position, (kind, target) in enumerate(steps):
        before = following[position]
        where = f"before {before}" if before else "at the end"
        if kind == StepKind.COMPUTE and copies[position]:
            words.append(f"recompute {graph.op_names[target]} (cost {graph.op_cost[target]:g}) {where}")
        elif kind != StepKind.COMPUTE:
            size = format_bytes(int(graph.buffer_nbytes[target]))
            verb = "offload" if kind == StepKind.OFFLOAD else "reload"
            words.append(f"{verb} {graph.buffer_names[target]} ({size}) {where}")
    first = schedule.ops[schedule.copies()[schedule.kind == StepKind.COMPUTE] == 0]
    misplaced = len(first) - _longest_rise(first.tolist())
    if misplaced:
        words.insert(0, f"run {misplaced} of {graph.num_ops} ops at another place")
    return words


def describe_plan(plan: Plan) -> str:
    """Write the summary of a plan and its first moves."""
    peak, program = plan.peak_increase_bytes, plan.program_peak_increase_bytes
    share = f" ({100 * peak / program:.0f}% of the program's)" if program else ""
    lines = [
        (
            f"peak increase {format_bytes(peak)}{share}, program {format_bytes(program)}, "
            f"lower bound {format_bytes(plan.lower_bound_bytes)}"
        ),
        f"extra cost {100 * plan.extra_cost_ratio:.1f}%",
    ]
    if plan.budget_bytes is not None:
        lines[0] = f"budget {format_bytes(plan.budget_bytes)}: {lines[0]}"
    if plan.moved_bytes:
        lines[1] += f", {format_bytes(plan.moved_bytes)} moved out and back"
    lines += [f"  {move}" for move in plan.moves[:_SHOWN_MOVES]]
    if len(plan.moves) > _SHOWN_MOVES:
        lines.append(f"  and {len(plan.moves) - _SHOWN_MOVES} more moves")
    return "\n".join(lines)


def _next_new_op(graph: Graph, schedule: Schedule) -> list[object]:
    """Name for every step the next op that runs for the first time, None at the end."""
    following: list[object] = []
    name: object = None
    copies = schedule.copies()
    for position in range(len(schedule) - 1, -1, -1):
        following.append(name)
        if schedule.kind[position] == StepKind.COMPUTE and copies[position] == 0:
            name = graph.op_names[schedule.index[position]]
    return following[::-1]


def _longest_rise(numbers: list[int]) -> int:
    """Length of the longest increasing subsequence (patience sorting): the ops that stay in place."""
    tails = np.full(len(numbers) + 1, np.iinfo(np.int64).max)
    length = 0
    for number in numbers:
        place = int(np.searchsorted(tails[:length], number))
        tails[place] = number
        length = max(length, place + 1)
    return length
