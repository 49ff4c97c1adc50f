"""Moving buffers out and back: the cost, the buffers that never move, and the cases where it beats recomputing."""

from __future__ import annotations

import numpy as np
import pytest

from memwatch.planner import (
    BudgetError,
    Effect,
    Graph,
    GraphError,
    OpSpec,
    Schedule,
    Step,
    StepKind,
    plan_graph,
)
from memwatch.planner.recompute.model import (
    movable_buffers,
    move_costs,
    moved_bytes,
    recompute_model,
    tokens_of,
)

KIB = 2**10
PAGE = 4 * KIB


def waiting(cost_of_first: float, cost_of_second: float) -> Graph:
    """Two saved buffers wait while a large one is alive; the arguments are the costs of making them again."""
    return Graph.build(
        [
            OpSpec("first", (), {"a": 8 * PAGE}, cost_of_first),
            OpSpec("second", (), {"b": 8 * PAGE}, cost_of_second),
            OpSpec("use", ("a", "b"), {"y": PAGE}, 10.0),
            OpSpec("large", ("y",), {"z": 16 * PAGE}, 10.0),
            OpSpec("small", ("z",), {"s": PAGE}, 10.0),
            OpSpec("late b", ("b", "s"), {"t": PAGE}, 10.0),
            OpSpec("late a", ("a", "t"), {"out": PAGE}, 10.0),
        ],
        keep=["out"],
    )


def test_recompute_where_cheap_and_offload_where_dear():
    """One plan recomputes the cheap buffer and moves the dear one (thunder #871)."""
    graph = waiting(cost_of_first=1000.0, cost_of_second=1.0)
    plan = plan_graph(graph, budget=18 * PAGE, offload=True, bandwidth=PAGE / 2)
    assert plan.order.count("second") == 2
    assert plan.order.count("first") == 1
    assert plan.moved_bytes == 2 * 8 * PAGE
    assert any(move.startswith("offload a") for move in plan.moves)
    assert any(move.startswith("reload a") for move in plan.moves)


def test_the_bandwidth_decides():
    """A slow copy makes the plan compute again, a fast one makes it move."""
    graph = waiting(cost_of_first=100.0, cost_of_second=100.0)
    slow = plan_graph(graph, budget=18 * PAGE, offload=True, bandwidth=PAGE / 1000)
    fast = plan_graph(graph, budget=18 * PAGE, offload=True, bandwidth=PAGE * 1000)
    assert slow.moved_bytes == 0
    assert len(slow.order) > graph.num_ops
    assert fast.moved_bytes == 2 * 16 * PAGE
    assert len(fast.order) == graph.num_ops
    assert fast.extra_cost_ratio < slow.extra_cost_ratio


def test_without_recompute_an_effect_can_still_be_moved():
    """An op that must run once can have its buffers moved. Offload then reaches a budget that recompute cannot."""
    ops = [
        OpSpec("draw", (), {"noise": 8 * PAGE}, effect=Effect.UNKNOWN),
        OpSpec("use", ("noise",), {"y": PAGE}),
        OpSpec("large", ("y",), {"z": 16 * PAGE}),
        OpSpec("small", ("z",), {"s": PAGE}),
        OpSpec("late", ("noise", "s"), {"out": PAGE}),
    ]
    graph = Graph.build(ops, keep=["out"])
    with pytest.raises(BudgetError):
        plan_graph(graph, budget=18 * PAGE)
    plan = plan_graph(graph, budget=18 * PAGE, offload=True)
    assert plan.moved_bytes == 2 * 8 * PAGE
    assert plan.order == list(graph.op_names)


def test_moves_alone_fit_where_hiding_the_copies_would_not():
    """A buffer is fetched late when fetching it early would not fit, even if that costs time."""
    graph = waiting(cost_of_first=1000.0, cost_of_second=1.0)
    plan = plan_graph(graph, budget=18 * PAGE, offload=True, recompute=False, bandwidth=PAGE / 2)
    assert plan.peak_increase_bytes <= 18 * PAGE
    assert len(plan.order) == graph.num_ops
    assert plan.moved_bytes == 2 * 16 * PAGE
    assert plan.extra_cost_ratio > 0


def test_copies_hide_behind_computing():
    """A move is free when enough is computed before its buffer must be out and after it is called back."""
    from memwatch.planner.recompute import search as _search
    from memwatch.planner.recompute.search import duration

    graph = waiting(1.0, 1.0)
    buffer = graph.buffer_index["a"]
    steps = [Step(StepKind.COMPUTE, op) for op in range(4)]
    steps += [Step(StepKind.OFFLOAD, buffer), Step(StepKind.COMPUTE, 4)]
    steps += [Step(StepKind.RELOAD, buffer), Step(StepKind.COMPUTE, 5), Step(StepKind.COMPUTE, 6)]
    schedule = Schedule.of(steps)
    for bandwidth, stall in ((8 * PAGE / 10, 0.0), (8 * PAGE / 15, 10.0), (8 * PAGE / 5, 0.0)):
        model = recompute_model(graph, movable_buffers(graph), move_costs(graph, bandwidth))
        tokens = tokens_of(graph, schedule)
        draft = _search.new_draft(len(tokens))
        _search.load_tokens(draft, tokens)
        assert duration(model, draft) == pytest.approx(graph.total_cost + stall)
    assert moved_bytes(graph, schedule) == 16 * PAGE


def test_small_and_external_buffers_stay():
    """Buffers under 4 KiB stay, and so do buffers that the program does not own."""
    graph = Graph.build(
        [("a", ["weight"], {"x": PAGE}, 1), ("b", ["x"], {"y": PAGE - 1}, 1)],
        external_nbytes={"weight": 100 * PAGE},
    )
    movable = dict(zip(graph.buffer_names, movable_buffers(graph).tolist(), strict=True))
    assert movable == {"weight": False, "x": True, "y": False}


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan"), float("inf")])
def test_an_impossible_bandwidth_is_refused(bandwidth):
    """Bytes per unit of cost are a positive number."""
    with pytest.raises(GraphError, match="bandwidth"):
        plan_graph(waiting(1, 1), budget="80%", offload=True, bandwidth=bandwidth)


def test_costs_follow_sizes():
    """Half the bandwidth is twice the price."""
    graph = waiting(1, 1)
    assert np.allclose(move_costs(graph, 2.0) * 2, move_costs(graph, 1.0))
