"""Building graphs: versions, precedence, checks."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from memwatch.errors import MemwatchError
from memwatch.planner import Effect, Graph, GraphError, OpSpec, cuda_block_sizes


def preds(graph: Graph) -> dict[str, set[str]]:
    return {
        name: {graph.op_names[above] for above in graph.preds.row(op).tolist()}
        for op, name in enumerate(graph.op_names)
    }


def test_unknown_reads_are_external_with_no_bytes():
    graph = Graph.build([("a", ["x", "x"], {"y": 8}, 1.5)])
    assert graph.buffer_names == ("x", "y")
    assert graph.buffer_nbytes.tolist() == [0, 8]
    assert graph.buffer_producer.tolist() == [-1, 0]
    assert graph.buffer_freeable.tolist() == [False, True]
    assert graph.total_cost == 1.5


def test_readers_of_a_version_run_before_the_op_that_mutates_it_and_later_readers_after():
    graph = Graph.build(
        [
            OpSpec("make", makes={"b": 1}),
            OpSpec("early", reads=["b"]),
            OpSpec("mutate", reads=["b"], writes=["b"]),
            OpSpec("late", reads=["b"]),
            OpSpec("again", writes=["b"]),
        ]
    )
    assert preds(graph) == {
        "make": set(),
        "early": {"make"},
        "mutate": {"make", "early"},
        "late": {"mutate"},
        "again": {"mutate", "late"},
    }
    assert graph.final_version.tolist() == [2]


def test_an_external_buffer_that_is_mutated_orders_its_readers_too():
    graph = Graph.build(
        [OpSpec("read", reads=["p"]), OpSpec("update", writes=["p"]), OpSpec("use", reads=["p"])]
    )
    assert preds(graph) == {"read": set(), "update": {"read"}, "use": {"update"}}


def test_effects_keep_program_order_in_their_chain():
    """RNG ops follow the generator, host effects follow each other, an unknown effect follows both."""
    graph = Graph.build(
        [
            OpSpec("dropout", effect=Effect.RNG),
            OpSpec("item", effect=Effect.ITEM),
            OpSpec("randn", effect=Effect.RNG),
            OpSpec("all_reduce", effect=Effect.COLLECTIVE),
            OpSpec("custom", effect=Effect.UNKNOWN),
            OpSpec("rand", effect=Effect.RNG),
        ]
    )
    assert preds(graph) == {
        "dropout": set(),
        "item": set(),
        "randn": {"dropout"},
        "all_reduce": {"item"},
        "custom": {"randn", "all_reduce"},
        "rand": {"custom"},
    }


def test_only_pure_ops_are_recomputable_unless_the_generator_state_is_promised():
    graph = Graph.build(
        [
            OpSpec("pure"),
            OpSpec("rng", effect=Effect.RNG),
            OpSpec("restored", effect=Effect.RNG, recomputable=True),
            OpSpec("pinned", recomputable=False),
            OpSpec("item", effect=Effect.ITEM),
        ]
    )
    assert graph.op_recomputable.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([("a", [], {"x": 1}, 1), ("a", [], {"y": 1}, 1)], "both named 'a'"),
        ([("a", [], {"x": 1}, 1), ("b", [], {"x": 1}, 1)], "'x' is made by 'a' and again by 'b'"),
        ([("a", ["x"], {"x": 1}, 1)], "cycle"),
        ([("a", ["y"], {"x": 1}, 1), ("b", ["x"], {"y": 1}, 1)], "cycle"),
        ([("a", ["y"], {"x": 1}, 1), ("c", [], {}, 1), ("b", ["z"], {"y": 1}, 1)], "before 'b' makes it"),
        ([("a", [], {"x": -1}, 1)], "size -1"),
        ([("a", [], {"x": 1.5}, 1)], "size 1.5"),
        ([("a", [], {"x": 1}, -2)], "costs -2"),
        ([("a", [], {"x": 1}, float("nan"))], "costs nan"),
        ([("a", "xy", {"x": 1}, 1)], "lists of buffers"),
        ([("a", 3, {"x": 1}, 1)], "lists of buffers"),
        ([OpSpec("a", reads="xy")], "lists of buffers"),
        ([OpSpec("a", writes="xy")], "lists of buffers"),
        ([OpSpec("a", ["y"], {"x": 1}), OpSpec("b", makes={"y": 1}, writes=["x"])], "cycle"),
        ([OpSpec("a", reads=["x"], writes_once=["x"])], "'x' in writes_once, but not in writes"),
        ([("a", [], 1)], "is not an op"),
        ([OpSpec("a", workspace_bytes=-1)], "workspace of -1"),
        ([OpSpec("a", effect=Effect.ITEM, recomputable=True)], "cannot be recomputable"),
    ],
)
def test_what_is_no_program_is_refused_with_the_value_in_the_message(ops, message):
    with pytest.raises(GraphError, match=message) as caught:
        Graph.build(ops)
    assert isinstance(caught.value, MemwatchError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["nothing"]}, "'nothing' is in keep"),
        ({"external_nbytes": {"y": 4}}, "op 'a' makes it"),
        ({"death": {"y": 7}}, "dies after op 7"),
        ({"death": {"nothing": 0}}, "'nothing' has a recorded death"),
    ],
)
def test_what_is_said_of_buffers_that_do_not_fit_is_refused(options, message):
    with pytest.raises(GraphError, match=message):
        Graph.build([("a", ["x"], {"y": 1}, 1)], **options)


def test_sizes_can_be_rounded_as_the_allocator_rounds_them():
    graph = Graph.build([("a", [], {"x": 1, "y": 512, "z": 513, "w": 0}, 1)])
    assert graph.with_sizes(cuda_block_sizes).buffer_nbytes.tolist() == [512, 512, 1024, 0]
    assert graph.buffer_nbytes.tolist() == [1, 512, 513, 0]


def test_arrays_are_read_only_rows_and_survive_pickling():
    graph = Graph.build([OpSpec("a", makes={"x": 3}), OpSpec("b", reads=["x"], writes=["x"])], keep=["x"])
    with pytest.raises(ValueError, match="read-only"):
        graph.preds.indices[0] = 5
    copy = pickle.loads(pickle.dumps(graph))
    assert copy.op_names == graph.op_names
    assert np.array_equal(copy.preds.indices, graph.preds.indices)


def test_a_hundred_thousand_ops_build():
    ops = [(op, [op - 1, op // 2] if op else [], {op: 1}, 1) for op in range(100_000)]
    graph = Graph.build(ops)
    assert (graph.num_ops, graph.num_buffers) == (100_000, 100_000)
    assert graph.preds.row(99_999).tolist() == [49_999, 99_998]


def test_importing_the_planner_loads_no_solver_and_no_compiler():
    """Heavy modules wait until they are needed; torch is never needed."""
    code = (
        "import sys, memwatch.planner as p\n"
        "p.program_peak  # the public names are there\n"
        "heavy = {'torch', 'numba', 'ortools', 'networkx'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
