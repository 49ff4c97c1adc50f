"""Record and replay in one call, for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import memwatch
from memwatch.planner import Schedule, simulate
from memwatch.replay.api import Replayable, replayable
from memwatch.replay.run import replay_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.replay.run import ReplayResult


def record(step: Callable[[], object], **options) -> memwatch.Profile:
    """Record one call of `step` with everything that a replay needs."""
    with memwatch.profile(replay=True, **{"holders": False, **options}) as prof:
        prof.returned = step()
    return prof


def program_order(program: Replayable) -> tuple[Schedule, int]:
    """Return the program's own order as a schedule, and the peak increase it plans."""
    graph = program.recorded.graph
    schedule = Schedule.from_order(range(graph.num_ops))
    return schedule, simulate(graph, schedule).peak_bytes - graph.baseline_bytes


def replay_program(prof: memwatch.Profile) -> ReplayResult:
    """Replay a recording in its own order."""
    program = replayable(prof)
    schedule, planned_bytes = program_order(program)
    return replay_schedule(program.recorded, schedule, program.inputs, planned_bytes)
