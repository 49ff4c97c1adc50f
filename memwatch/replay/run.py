"""Replay a schedule: execute it on the recorded inputs, measure, compare, and restore the random state."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from memwatch.devices import adapter_of, devices_in_use
from memwatch.encoding.host_copies import read_states, restore_states
from memwatch.planner import Schedule
from memwatch.replay.executor import Executor, OnStep
from memwatch.replay.inputs import starting_storages
from memwatch.replay.measure import measure_peak
from memwatch.replay.result import ReplayResult
from memwatch.replay.verify import (
    differing,
    largest_of,
    last_writer,
    recorded_results,
    results_of,
    rng_differs,
)

if TYPE_CHECKING:
    from memwatch.encoding.host_copies import HostBytes, ReplayInputs
    from memwatch.replay.graph import Recorded


def replay_schedule(
    recorded: Recorded,
    schedule: Schedule,
    inputs: ReplayInputs | None,
    planned_bytes: int,
    on_step: OnStep | None = None,
) -> ReplayResult:
    """Execute a schedule on the recorded inputs and compare what it leaves.

    Args:
        recorded: the program and its graph.
        schedule: the steps.
        inputs: the live part of the recording; None replays with synthetic inputs of the recorded shapes.
        planned_bytes: peak increase that the plan promises.
        on_step: called before every step with its number.

    Raises:
        ReplayError: an input changed since it was recorded, or an op failed or returned another value or shape.
    """
    run = _Run(recorded, inputs)
    found, outcome = run.once(schedule, on_step)
    result = partial(
        ReplayResult,
        peak_increase_bytes=outcome.peak_increase_bytes,
        planned_bytes=planned_bytes,
        duration_s=outcome.duration_s,
        moved_bytes=outcome.moved_bytes,
    )
    if inputs is None:
        return result(identical=None, max_abs_diff=math.nan, tolerance=0.0, num_checked=0, synthetic=True)
    program = recorded.program
    wanted = recorded_results(program, inputs)
    wrong = differing(wanted, found)
    gap = largest_of(program, wrong, wanted, found)
    tolerance = run.own_difference() if wrong else 0.0
    return result(
        identical=not wrong and not outcome.rng_differs, max_abs_diff=gap, tolerance=tolerance,
        num_checked=len(wanted), synthetic=False, differs_in=last_writer(program, wrong),
    )  # fmt: skip


class _Outcome:
    """Measurements of one run."""

    peak_increase_bytes = 0
    duration_s = 0.0
    moved_bytes = 0
    rng_differs = False


class _Run:
    """Runs schedules of one program, each from the recorded start."""

    def __init__(self, recorded: Recorded, inputs: ReplayInputs | None) -> None:
        self._recorded = recorded
        self._inputs = inputs

    def once(
        self, schedule: Schedule, on_step: OnStep | None = None
    ) -> tuple[dict[int, HostBytes], _Outcome]:
        """Run a schedule; return the bytes it left, by buffer, and what was measured."""
        inputs, program = self._inputs, self._recorded.program
        own = inputs.generators if inputs is not None else []
        users_states = read_states(
            [*devices_in_use(), *(f"generator:{index}" for index in range(len(own)))], own
        )
        executor = Executor(self._recorded, schedule, starting_storages(program, inputs), inputs, on_step)
        outcome = _Outcome()
        try:
            with measure_peak(self._recorded.device) as measured:
                device = self._recorded.device
                wait = partial(adapter_of(device).synchronize, device)  # an accelerator works on after a call
                wait()
                start_s = time.perf_counter()
                executor.run()
                wait()
                outcome.duration_s = time.perf_counter() - start_s
            outcome.peak_increase_bytes = measured.peak_increase_bytes
            outcome.moved_bytes = executor.moved_bytes
            outcome.rng_differs = rng_differs(executor)
            return results_of(program, executor.storages), outcome
        finally:
            executor.clear()
            restore_states(users_states, own)

    def own_difference(self) -> float:
        """Return the largest difference between two runs of the program in its own order."""
        order = Schedule.from_order(np.arange(self._recorded.graph.num_ops))
        program = self._recorded.program
        (one, _), (other, _) = self.once(order), self.once(order)
        return largest_of(program, differing(one, other), one, other)
