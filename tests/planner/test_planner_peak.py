"""The simulator: accounting, recompute, offload, validity."""

from __future__ import annotations

import pytest

from memwatch.planner import (
    Effect,
    Graph,
    OpSpec,
    OrderError,
    Schedule,
    Step,
    StepKind,
    cuda_block_sizes,
    program_peak,
    simulate,
)

C, OUT, BACK = StepKind.COMPUTE, StepKind.OFFLOAD, StepKind.RELOAD


def live(graph: Graph, order: list[int]) -> list[int]:
    return simulate(graph, Schedule.from_order(order)).live_bytes.tolist()


def test_outputs_and_workspace_count_before_the_last_used_inputs_are_freed():
    graph = Graph.build(
        [
            OpSpec("a", makes={"x": 10}),
            OpSpec("b", reads=["x"], makes={"y": 4}, workspace_bytes=100),
            OpSpec("c", reads=["y"], makes={"z": 1}),
        ],
        keep=["z"],
    )
    result = simulate(graph, Schedule.from_order([0, 1, 2]))
    assert result.live_bytes.tolist() == [10, 114, 5]
    assert (result.peak_bytes, result.peak_step) == (114, 1)


def test_an_output_that_nobody_reads_goes_right_after_its_op_unless_it_is_kept():
    ops = [("a", [], {"unused": 8}, 1), ("b", [], {"y": 1}, 1)]
    assert live(Graph.build(ops), [0, 1]) == [8, 1]
    assert live(Graph.build(ops, keep=["unused"]), [0, 1]) == [8, 9]


def test_external_buffers_count_from_the_start_and_may_be_freeable():
    ops = [("a", ["x"], {"y": 1}, 1), ("b", ["y"], {"z": 1}, 1)]
    assert live(Graph.build(ops, external_nbytes={"x": 5}), [0, 1]) == [6, 7]
    freeable = Graph.build(ops, external_nbytes={"x": 5}, freeable_externals=["x"])
    assert live(freeable, [0, 1]) == [6, 2]
    assert freeable.baseline_bytes == 5


def test_the_program_frees_when_it_was_recorded_to_and_a_plan_at_the_last_use():
    ops = [("a", [], {"x": 8}, 1), ("b", ["x"], {"y": 1}, 1), ("c", ["y"], {"z": 4}, 1), ("d", ["z"], {}, 1)]
    graph = Graph.build(ops, death={"x": 2})
    assert program_peak(graph).live_bytes.tolist() == [8, 9, 13, 4]
    assert live(graph, [0, 1, 2, 3]) == [8, 9, 5, 4]


def test_a_recompute_frees_the_first_copy_after_its_last_use_before():
    graph = Graph.build(
        [
            ("a", [], {"x": 10}, 1),
            ("b", ["x"], {"y": 1}, 1),
            ("big", ["y"], {"z": 50}, 1),
            ("use", ["z", "y"], {"w": 1}, 1),
            ("last", ["x", "w"], {"out": 1}, 1),
        ],
        keep=["out"],
    )
    assert live(graph, [0, 1, 2, 3, 4]) == [10, 11, 61, 62, 12]
    assert live(graph, [0, 1, 2, 3, 0, 4]) == [10, 11, 51, 52, 11, 12]


def test_an_output_that_is_still_wanted_survives_the_recompute_of_its_sibling():
    """The second copy of `kept` is dropped at once: the first one has been mutated."""
    graph = Graph.build(
        [
            OpSpec("make", makes={"x": 10, "kept": 3}),
            OpSpec("mutate", writes=["kept"]),
            OpSpec("use", reads=["x"], makes={"y": 1}),
            OpSpec("end", reads=["x", "y", "kept"]),
        ]
    )
    assert live(graph, [0, 1, 2, 0, 3]) == [13, 13, 14, 17, 14]


def test_an_offloaded_buffer_is_freed_after_its_last_use_before_the_reload():
    graph = Graph.build(
        [
            ("a", [], {"x": 10}, 1),
            ("b", ["x"], {"y": 1}, 1),
            ("c", ["y"], {"z": 5}, 1),
            ("d", ["x", "z"], {}, 1),
        ]
    )
    x = graph.buffer_index["x"]
    steps = [Step(C, 0), Step(OUT, x), Step(C, 1), Step(C, 2), Step(BACK, x), Step(C, 3)]
    assert simulate(graph, Schedule.of(steps)).live_bytes.tolist() == [10, 10, 11, 6, 15, 15]


def test_allocator_rounding_is_pluggable():
    graph = Graph.build([("a", [], {"x": 1}, 1), ("b", ["x"], {"y": 513}, 1)])
    assert simulate(graph, Schedule.from_order([0, 1]), cuda_block_sizes).peak_bytes == 512 + 1024


MUTATED = Graph.build(
    [
        OpSpec("make", makes={"x": 1}),
        OpSpec("read", reads=["x"], makes={"y": 1}),
        OpSpec("mutate", writes=["x"]),
        OpSpec("end", reads=["x", "y"], makes={"z": 1}),
    ],
    keep=["z"],
)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2, 1, 3], "'read' .* needs another version of buffer 'x'"),
        ([0, 1, 2, 1, 3], "'read' .* needs another version"),
        ([1, 0, 2, 3], "'read' .* needs buffer 'x', which is not there"),
        ([0, 1, 2], "'end' is missing"),
        ([0, 1, 2, 9], "index 9"),
    ],
)
def test_a_schedule_that_computes_something_else_is_refused(order, message):
    with pytest.raises(OrderError, match=message):
        simulate(MUTATED, Schedule.from_order(order))


def test_recomputing_the_whole_chain_of_a_mutated_buffer_is_valid():
    """A fresh copy, mutated again, is the same version as before."""
    assert live(MUTATED, [0, 1, 0, 2, 3]) == [1, 2, 2, 2, 3]


def test_effects_run_once_and_in_program_order():
    ops = [OpSpec("r1", makes={"x": 1}, effect=Effect.RNG), OpSpec("r2", makes={"y": 1}, effect=Effect.RNG)]
    graph = Graph.build(ops)
    with pytest.raises(OrderError, match="'r2' runs before 'r1'"):
        simulate(graph, Schedule.from_order([1, 0]))
    with pytest.raises(OrderError, match="'r1' is computed 2 times"):
        simulate(graph, Schedule.from_order([0, 0, 1]))
    restored = Graph.build([OpSpec("r1", makes={"x": 1}, effect=Effect.RNG, recomputable=True), ops[1]])
    assert simulate(restored, Schedule.from_order([0, 1, 0])).peak_bytes == 1


def test_what_is_kept_must_be_there_in_its_last_version():
    graph = Graph.build([OpSpec("make", makes={"x": 1}), OpSpec("mutate", writes=["x"])], keep=["x"])
    assert live(graph, [0, 1]) == [1, 1]
    # the copy made after the mutation is of no use: the mutated one lives on
    assert live(graph, [0, 1, 0]) == [1, 1, 2]


def test_the_copies_of_a_schedule_are_numbered():
    schedule = Schedule.of([Step(C, 1), Step(C, 0), Step(C, 1), Step(OUT, 1), Step(BACK, 1), Step(C, 1)])
    assert schedule.copies().tolist() == [0, 0, 1, 0, 0, 2]
    assert list(schedule)[3] == Step(OUT, 1)
    assert schedule == Schedule.of(list(schedule))
    assert len({schedule, Schedule.of(list(schedule)), Schedule.from_order([0])}) == 2


def test_an_empty_program_keeps_nothing_alive():
    assert simulate(Graph.build([]), Schedule.from_order([])).peak_bytes == 0
