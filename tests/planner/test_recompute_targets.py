"""Recompute plans reach the published and proven optima, and never recompute an op that must run once."""

from __future__ import annotations

import random

import pytest
from planner_fcn8 import fcn8_step
from planner_recompute_graphs import adversary_chains, linear_graph, unet_step
from planner_transformer import transformer_step

from memwatch.planner import BudgetError, Effect, Graph, OpSpec, lower_bound, plan_graph, program_peak
from memwatch.planner.order.bounds import working_set_bound

MIB = 2**20


@pytest.mark.parametrize(
    ("length", "budget", "recomputes"),
    [
        (4, 3, 6), (4, 4, 2), (4, 5, 1), (8, 4, 9), (8, 5, 5), (8, 6, 4), (8, 7, 3),
        (12, 5, 12), (12, 6, 8), (12, 7, 7), (16, 5, 20), (16, 6, 14), (16, 7, 11), (16, 8, 10), (16, 9, 9),
    ],
)  # fmt: skip
def test_checkmate_linear_graphs(length, budget, recomputes):
    """Checkmate's chain with skips needs exactly the proven number of recomputes."""
    graph = linear_graph(length)
    plan = plan_graph(graph, budget=budget)
    assert plan.peak_increase_bytes <= budget
    assert len(plan.order) - graph.num_ops == recomputes


def test_dtr_adversary_needs_no_recompute():
    """Parallel chains with interleaved ops: an order alone reaches any budget that an online cache thrashes at."""
    graph = adversary_chains(count=12, length=20)
    assert program_peak(graph).peak_bytes == 13
    plan = plan_graph(graph, budget=3)
    assert plan.peak_increase_bytes <= 3
    assert len(plan.order) == graph.num_ops
    assert plan.extra_cost_ratio == 0


@pytest.fixture(scope="module")
def transformer() -> Graph:
    """Four layers, width 256, explicit softmax: 176.14 MiB in program order, as the profiler measured."""
    return transformer_step()


def test_transformer_program_peak_is_the_measured_one(transformer):
    """The generated step has the peak of the recorded one, in the order eager PyTorch runs it."""
    assert round(program_peak(transformer).peak_bytes / MIB, 2) == 176.14


@pytest.mark.parametrize(
    ("budget_mib", "extra"),
    [(140, 0.06), (105.5, 0.16), (85.5, 0.21), (69.5, 0.27), (51.5, 0.40), (43.8, 0.54)],
)
def test_transformer_beats_the_prototype(transformer, budget_mib, extra):
    """Same peaks as the prototype's, at no more extra FLOPs."""
    plan = plan_graph(transformer, budget=int(budget_mib * MIB), time_limit_s=60)
    assert plan.peak_increase_bytes <= budget_mib * MIB
    assert plan.extra_cost_ratio <= extra


@pytest.mark.parametrize("length", [4, 6, 8, 10])
def test_feasible_close_to_the_bound_on_chains(length):
    """A chain fits whenever the budget is 1.15 times the larger of working set and kept bytes."""
    graph = linear_graph(length, nbytes=100)
    budget = int(1.15 * lower_bound(graph, recompute=True))
    assert plan_graph(graph, budget=budget).peak_increase_bytes <= budget


def test_transformer_close_to_the_bound_needs_moves(transformer):
    """1.15 times the working set leaves no room for the kept gradients while the last softmax is reversed.

    Ops with 24 MiB of inputs and outputs must run. While the last of them runs, 10.3 MiB must wait beside it, because
    the gradients are computed from these. Only moving them out helps.
    """
    budget = int(1.15 * working_set_bound(transformer))
    assert budget < lower_bound(transformer, recompute=True) == 35_958_784
    plan = plan_graph(transformer, budget=budget, offload=True, time_limit_s=60)
    assert plan.peak_increase_bytes <= budget
    assert plan.moved_bytes > 0


def test_transformer_close_to_the_bound_of_recompute(transformer):
    """With recompute alone, 1.15 times the bytes that any such plan needs are enough."""
    budget = int(1.15 * lower_bound(transformer, recompute=True))
    plan = plan_graph(transformer, budget=budget, time_limit_s=60)
    assert plan.peak_increase_bytes <= budget
    assert plan.moved_bytes == 0


@pytest.mark.parametrize(("budget", "extra"), [("90%", 0.00029364), ("80%", 0.00136112)])
@pytest.mark.parametrize("order", ["program", "auto"])
def test_fcn8_meets_the_proven_optimum(budget, extra, order):
    """Checkmate's FCN-8 step, Moccasin's CM1: the proven extra compute, 0.029 % and 0.136 %."""
    graph = fcn8_step()
    assert (program_peak(graph).peak_bytes, working_set_bound(graph)) == (13_484_795_520, 8_287_944_704)
    assert (graph.num_ops, len(graph.reads.indices)) == (73, 149)
    assert plan_graph(graph, budget=budget, order=order).extra_cost_ratio <= extra


def test_skips_of_a_unet_are_recomputed():
    """A U-Net holds skip connections. No order helps, but recompute does."""
    graph = unet_step(6, random.Random(1))
    program = program_peak(graph).peak_bytes
    budget = int(0.6 * program)
    plan = plan_graph(graph, budget=budget)
    assert plan.peak_increase_bytes <= budget
    assert 0 < plan.extra_cost_ratio < 0.5


def saved_and_needed(middle: OpSpec) -> Graph:
    """`middle` makes a large buffer that waits while another one is large."""
    return Graph.build(
        [
            OpSpec("in", (), {"x": 1}),
            middle,
            OpSpec("use", ("big",), {"y": 1}),
            OpSpec("large", ("y",), {"z": 10}),
            OpSpec("small", ("z",), {"s": 1}),
            OpSpec("late", ("big", "s"), {"out": 1}),
        ],
        keep=["out"],
    )


def test_a_pure_op_is_recomputed():
    """The control of the tests below: without effect, the large buffer is made twice."""
    graph = saved_and_needed(OpSpec("middle", ("x",), {"big": 10}))
    plan = plan_graph(graph, budget=14)
    assert plan.order.count("middle") == 2
    assert any(move.startswith("recompute middle") for move in plan.moves)


@pytest.mark.parametrize("effect", [Effect.RNG, Effect.COLLECTIVE, Effect.ITEM, Effect.UNKNOWN])
def test_an_effect_is_never_computed_twice(effect):
    """An op with an effect runs once, even if the budget cannot be met without repeating it."""
    graph = saved_and_needed(OpSpec("middle", ("x",), {"big": 10}, effect=effect))
    with pytest.raises(BudgetError) as caught:
        plan_graph(graph, budget=14)
    assert caught.value.best.order.count("middle") == 1


def test_a_random_op_is_recomputed_only_with_its_state_restored():
    """An RNG op that promises to restore the generator may run again."""
    graph = saved_and_needed(OpSpec("middle", ("x",), {"big": 10}, effect=Effect.RNG, recomputable=True))
    assert plan_graph(graph, budget=14).order.count("middle") == 2


def test_an_op_whose_input_was_mutated_is_not_recomputed():
    """Once a weight has been updated in place, results that were computed from it cannot be made again."""
    ops = [
        OpSpec("middle", ("weight",), {"big": 10}),
        OpSpec("use", ("big",), {"y": 1}),
        OpSpec("update", ("y",), writes=("weight",)),
        OpSpec("large", ("y", "weight"), {"z": 10}),
        OpSpec("small", ("z", "weight"), {"s": 1}),
        OpSpec("late", ("big", "s"), {"out": 1}),
    ]
    graph = Graph.build(ops, keep=["out"])
    with pytest.raises(BudgetError) as caught:
        plan_graph(graph, budget=14)
    assert caught.value.best.order.count("middle") == 1
    unmutated = Graph.build([op for op in ops if op.name != "update"], keep=["out"])
    assert plan_graph(unmutated, budget=14).order.count("middle") == 2


def test_a_mutated_buffer_is_made_again_with_its_mutations():
    """A buffer that was mutated after it was made is brought back by both ops, in their order."""
    ops = [
        OpSpec("in", (), {"x": 1}),
        OpSpec("make", ("x",), {"big": 10}),
        OpSpec("relu_", (), writes=("big",)),
        OpSpec("use", ("big",), {"y": 1}),
        OpSpec("large", ("y",), {"z": 10}),
        OpSpec("small", ("z",), {"s": 1}),
        OpSpec("late", ("big", "s"), {"out": 1}),
    ]
    plan = plan_graph(Graph.build(ops, keep=["out"]), budget=14)
    assert plan.order.count("make") == plan.order.count("relu_") == 2
    assert plan.order[-3:] == ["make", "relu_", "late"]
