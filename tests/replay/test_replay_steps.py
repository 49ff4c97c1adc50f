"""Whole training steps: recorded, planned, replayed; bitwise equal and at the planned peak to the byte."""

from __future__ import annotations

import pytest
from replay_programs import PROGRAMS, paths_efficient, paths_inefficient
from replay_recording import record, replay_program

from memwatch.planner import BudgetError
from memwatch.replay.api import plan, replay, replayable
from memwatch.replay.measure import measure_peak

SCALAR_BYTES = (
    8  # a Python number among the arguments becomes a tensor that interception holds a little longer
)


def recorded(name):
    step = PROGRAMS[name]()
    step()  # the first step makes the optimizer's state
    return step, record(step)


@pytest.mark.parametrize("name", PROGRAMS)
def test_step_replays_in_program_order(name):
    """The program's own order gives the program's own results, bit for bit, at the planned peak."""
    _, prof = recorded(name)
    result = replay_program(prof)
    assert result.identical
    assert result.max_abs_diff == 0.0
    assert result.num_checked > 5
    assert result.peak_increase_bytes == result.planned_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_plan_replays_at_its_peak(name):
    """Whatever a plan reorders and recomputes, the results are bitwise equal and the peak is the planned one."""
    _, prof = recorded(name)
    try:
        planned = plan(prof, budget="60%", time_limit_s=2)
    except BudgetError as error:
        planned = error.best
    result = replay(planned)
    assert result.identical
    assert result.peak_increase_bytes == planned.peak_increase_bytes
    assert planned.peak_increase_bytes <= planned.program_peak_increase_bytes


@pytest.mark.parametrize("name", ["gpt, AdamW plain", "resnet, BatchNorm, momentum SGD", "lstm", "u-net"])
def test_program_peak_is_the_allocators(name):
    """The planner's figure for the program's own peak equals the allocator's without any recording."""
    step, prof = recorded(name)
    with measure_peak("cpu") as measured:
        step()
    graph = replayable(prof).recorded.graph
    planned = plan(prof, order="program", recompute=False)
    assert graph.num_ops > 40
    assert abs(measured.peak_increase_bytes - planned.program_peak_increase_bytes) <= 2 * SCALAR_BYTES


def test_batch_norms_are_computed_again_without_their_statistics():
    """A recompute neither needs nor writes the running statistics, which the program has updated once."""
    _, prof = recorded("resnet, BatchNorm, momentum SGD")
    recording = replayable(prof).recorded
    norms = {call.op for call in recording.program.calls if call.writes_once}
    planned = plan(prof, budget="70%")
    assert any(planned.order.count(op) > 1 for op in norms)
    result = replay(planned)
    assert result.identical
    assert result.peak_increase_bytes == planned.peak_increase_bytes
    written = {buffer for call in recording.program.calls for buffer in call.writes_once}
    assert len(written) == 2 * len(norms)


def test_recompute_plan_differs_from_the_program():
    """The budget is met by running ops again, dropout among them: the test above tests something."""
    _, prof = recorded("gpt, AdamW foreach")
    planned = plan(prof, budget="60%")
    assert len(planned.order) > len(set(planned.order))
    assert planned.peak_increase_bytes <= 0.6 * planned.program_peak_increase_bytes
    names = {call.op: call.name for call in replayable(prof).recorded.program.calls}
    again = {names[op] for op in planned.order if planned.order.count(op) > 1}
    assert "aten.bernoulli_.float" in again
    assert any("bernoulli_ (op" in move and "replay_programs.py:" in move for move in planned.moves)


@pytest.mark.parametrize("paths", [paths_efficient, paths_inefficient])
def test_parallel_paths_replay_at_three_matrices(paths):
    """Thunder #1337: both ways to write ten paths run within 0.75 MiB, whatever order they were written in."""
    prof = record(paths())
    planned = plan(prof)
    result = replay(planned)
    assert planned.peak_increase_bytes == result.peak_increase_bytes == 3 * 256 * 1024
    assert result.identical


def test_forty_paths_plan_to_the_same_peak():
    """Four times the paths need no more memory."""
    planned = plan(record(paths_inefficient(paths=40, width=16)))
    assert planned.peak_increase_bytes == 3 * 16 * 16 * 4


def test_order_of_the_user():
    """An order given as a function of the graph is executed as it is."""
    prof = record(paths_inefficient(paths=3, width=16))
    planned = plan(prof, order=lambda graph: list(range(graph.num_ops)))
    assert planned.peak_increase_bytes == 4 * 16 * 16 * 4
    assert replay(planned).peak_increase_bytes == planned.peak_increase_bytes


def test_one_plan_replays_twice_alike():
    """Thunder #701: a replay clears its own containers only, so the next one finds everything in place."""
    _, prof = recorded("gpt, checkpointed")
    planned = plan(prof)
    first, second = replay(planned), replay(planned)
    assert first.identical
    assert second.identical
    assert first.peak_increase_bytes == second.peak_increase_bytes


def test_offloaded_buffers_come_back():
    """A plan that may only move buffers out replays with bitwise equal results too, and lists its moves."""
    _, prof = recorded("u-net")
    planned = plan(prof, budget="85%", recompute=False, offload=True)
    result = replay(planned)
    assert result.identical
    assert result.moved_bytes == planned.moved_bytes > 0
    assert result.peak_increase_bytes == planned.peak_increase_bytes
