"""What is there at the peak of a plan: where no bound excludes a budget, this is what stands in its way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.planner.peak import allocations, live_curve
from memwatch.planner.schedule import StepKind
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.planner.graph import Graph
    from memwatch.planner.op import Name
    from memwatch.planner.schedule import Schedule

_SMALL: Final = 0.01
"""A smaller share of the peak is not worth a word."""


@dataclass(frozen=True)
class AtPeak:
    """The bytes of a program's own at the peak of a schedule; each buffer counts once, where it fits first.

    Attributes:
        op: the op that runs then; None at a move.
        own_bytes: its inputs, outputs and workspace.
        kept_bytes: what stays to the end.
        once_bytes: what ops have made that may not run again.
        other_bytes: what waits though it could be computed again.
    """

    op: str | None
    own_bytes: int
    kept_bytes: int
    once_bytes: int
    other_bytes: int

    def __str__(self) -> str:
        """Return the figures as the end of a sentence."""
        waiting = [
            (self.kept_bytes, "stay to the end"),
            (self.once_bytes, "were made by ops that run only once"),
            (self.other_bytes, "wait for later ops"),
        ]
        least = _SMALL * (self.own_bytes + sum(nbytes for nbytes, _ in waiting))
        parts = [f"{format_bytes(nbytes)} {what}" for nbytes, what in waiting if nbytes > least]
        who = "a move needs" if self.op is None else f"{self.op} needs"
        rest = f" while {_listed(parts)}" if parts else ""
        return f"there {who} {format_bytes(self.own_bytes)}{rest}"


def at_peak(graph: Graph, schedule: Schedule, name_of: Callable[[Name], str]) -> AtPeak | None:
    """Return what is there at the peak of a schedule; None where the peak is before its first step.

    Args:
        graph: the program.
        schedule: what runs when.
        name_of: names an op for people.
    """
    allocated = allocations(graph, schedule)
    step = live_curve(graph, schedule, allocated).peak_step
    if step < 0:
        return None
    is_there = (allocated.first_step <= step) & (step <= allocated.last_step)
    there = np.unique(allocated.buffer[is_there])
    there = there[graph.buffer_producer[there] >= 0]
    target = int(schedule.index[step])
    is_op = schedule.kind[step] == StepKind.COMPUTE
    touched = graph.touches.row(target) if is_op else np.array([target])
    own = np.isin(there, touched)
    kept = ~own & graph.buffer_pinned[there]
    once = ~own & ~kept & ~graph.op_recomputable[graph.buffer_producer[there]]
    nbytes = graph.buffer_nbytes[there]
    workspace = int(graph.op_workspace_bytes[target]) if is_op else 0
    return AtPeak(
        name_of(graph.op_names[target]) if is_op else None,
        int(nbytes[own].sum()) + workspace,
        int(nbytes[kept].sum()),
        int(nbytes[once].sum()),
        int(nbytes[~(own | kept | once)].sum()),
    )


def _listed(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
