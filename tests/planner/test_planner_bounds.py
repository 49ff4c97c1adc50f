"""Bounds hold for every plan of their kind, and are met where they should be."""

from __future__ import annotations

import random

import pytest
from planner_recompute_graphs import layered_graph, linear_graph, training_chain, unet_step

from memwatch.planner import BudgetError, Graph, lower_bound, plan_graph
from memwatch.planner.order.bounds import working_set_bound
from memwatch.planner.recompute.retention import solve_retention
from memwatch.planner.request import Clock

PAGE = 4096


def gradients_of_large_buffers(count: int, small: int = PAGE) -> Graph:
    """Each large buffer gives a small buffer that is kept, as with weight gradients."""
    ops = [("in", [], {"x": 0}, 1.0)]
    for number in range(count):
        ops.append((f"large{number}", ["x"], {f"t{number}": 10 * PAGE}, 1.0))
        ops.append((f"small{number}", [f"t{number}"], {f"g{number}": small}, 1.0))
    return Graph.build(ops, keep=[f"g{number}" for number in range(count)])


@pytest.mark.parametrize("count", [2, 5])
def test_what_is_kept_waits_beside_the_last_large_op(count):
    """However much is recomputed, the other kept buffers lie beside the last large op; the bound is met."""
    graph = gradients_of_large_buffers(count)
    bound = lower_bound(graph, recompute=True)
    assert working_set_bound(graph) == 11 * PAGE
    assert bound == (10 + count) * PAGE
    assert plan_graph(graph, budget=bound).peak_increase_bytes == bound


def test_error_names_what_must_wait():
    """A budget under the bound is impossible. The error gives the reason and possible remedies."""
    graph = gradients_of_large_buffers(4)
    with pytest.raises(
        BudgetError, match=r"tensors that later ops need are alive beside the large ops.*allow offload"
    ) as caught:
        plan_graph(graph, budget=12 * PAGE)
    assert caught.value.bound_bytes == 14 * PAGE


def test_moves_go_below_the_bound_of_recompute():
    """Waiting buffers can be moved out, so with offload only the working set counts."""
    tight = gradients_of_large_buffers(3, small=2 * PAGE)
    assert lower_bound(tight, recompute=True) == 16 * PAGE
    assert lower_bound(tight, recompute=True, offload=True) == 12 * PAGE
    plan = plan_graph(tight, budget=12 * PAGE, offload=True)
    assert plan.peak_increase_bytes == 12 * PAGE
    assert plan.moved_bytes > 0


@pytest.mark.parametrize("seed", range(8))
def test_the_solver_finds_nothing_below_the_bound(seed):
    """CP-SAT, with three computations of every op, agrees that less than the bound is impossible."""
    rng = random.Random(seed)
    graph = (
        training_chain(rng.randint(4, 8), rng),
        unet_step(2, rng),
        layered_graph(4, 3, rng),
        linear_graph(rng.randint(3, 6)),
    )[seed % 4]
    bound = lower_bound(graph, recompute=True)
    result = solve_retention(graph, bound - 1, copies=3, effort=20.0, clock=Clock.of(60))
    assert (result.tokens, result.proven) == (None, True)


def test_a_large_program_has_a_bound_in_little_work():
    """The cuts are limited in number; the bound still holds, and is at least the working set."""
    graph = gradients_of_large_buffers(3_000)
    bound = lower_bound(graph, recompute=True)
    assert working_set_bound(graph) <= bound <= plan_graph(graph, budget="100%").peak_increase_bytes
