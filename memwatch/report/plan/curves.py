"""Live bytes step by step, of a program and of its plan, with few rows and every maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from memwatch.analysis.texts import TEXT
from memwatch.planner.peak import program_peak, simulate
from memwatch.planner.schedule import StepKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph
    from memwatch.planner.plan import Plan
    from memwatch.report.plan.places import Places

BINS: Final = 2000
NONE: Final = -1
"""Step of a curve that has ended."""


def plan_curves(plan: Plan, places: Places, bins: int = BINS) -> pd.DataFrame | None:
    """Return the live bytes of program and plan during each step.

    Bytes that are live before the first step are left out.

    Args:
        plan: the plan.
        places: names of the ops.
        bins: the largest number of rows. If there are more steps, each row shows the highest of equally many steps.

    Returns:
        A frame with the step, its live bytes and its action, for the program and for the plan. None for a plan
        that was read from a file, because the file does not hold the program.
    """
    graph = plan.graph
    if graph is None:
        return None
    before = program_peak(graph).live_bytes - graph.baseline_bytes
    after = simulate(graph, plan.schedule).live_bytes - graph.baseline_bytes
    width = max(1, -(-max(len(before), len(after)) // bins))
    rows = -(-max(len(before), len(after)) // width)
    program_step, plan_step = _highest(before, width, rows), _highest(after, width, rows)
    plan_words = _PlanWords(plan, graph, places)
    curves: pd.DataFrame = pd.DataFrame(
        {
            "at": np.arange(rows, dtype=np.int64) * width,
            "program_step": program_step,
            "program_bytes": _at(before, program_step),
            "program_what": pd.Series(
                [str(places.of(graph.op_names[step])) if step >= 0 else "" for step in program_step.tolist()],
                dtype=TEXT,
            ),
            "plan_step": plan_step,
            "plan_bytes": _at(after, plan_step),
            "plan_what": pd.Series([plan_words(step) for step in plan_step.tolist()], dtype=TEXT),
        }
    )
    return curves


class _PlanWords:
    """Describes the steps of a plan."""

    def __init__(self, plan: Plan, graph: Graph, places: Places) -> None:
        self._schedule, self._graph, self._places = plan.schedule, graph, places
        self._copies = plan.schedule.copies()

    def __call__(self, step: int) -> str:
        if step < 0:
            return ""
        kind, index = int(self._schedule.kind[step]), int(self._schedule.index[step])
        if kind != StepKind.COMPUTE:
            return "moves a buffer out" if kind == StepKind.OFFLOAD else "moves a buffer back"
        place = self._places.of(self._graph.op_names[index])
        return f"{place}, computed again" if self._copies[step] else str(place)


def _highest(live: NDArray[np.int64], width: int, rows: int) -> NDArray[np.int64]:
    """Return the first highest step of each stretch of `width` steps, NONE beyond the end."""
    lowest = np.iinfo(np.int64).min
    padded = np.full(rows * width, lowest, dtype=np.int64)
    padded[: len(live)] = live
    step = padded.reshape(rows, width).argmax(axis=1) + np.arange(rows) * width
    return np.where(step < len(live), step, NONE)


def _at(live: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(step >= 0, live[np.maximum(step, 0)] if len(live) else 0, 0)
