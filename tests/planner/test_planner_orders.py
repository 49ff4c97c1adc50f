"""The portfolio: exact where it says so, never worse than the program, the same for the same seed."""

from __future__ import annotations

import sys

import numpy as np
import planner_graphs as graphs
import pytest
from planner_clocks import clock_of_readings
from planner_reference import brute_force_peak

from memwatch.planner import (
    Graph,
    OpSpec,
    OrderError,
    Schedule,
    best_order,
    custom_order,
    lower_bound,
    program_peak,
    simulate,
)
from memwatch.planner.order.bounds import must_live_bound, pinned_bound, working_set_bound
from memwatch.planner.order.exact import cpsat_order, search_orders
from memwatch.planner.order.lists import beam_orders, inductor_orders, list_orders, tree_order
from memwatch.planner.order.portfolio import find_order
from memwatch.planner.order.problem import mirror_image, order_problem
from memwatch.planner.request import Clock


def peak_of(graph: Graph, order) -> int:
    return simulate(graph, Schedule.from_order(order)).peak_bytes


@pytest.mark.parametrize("seed", range(12))
def test_weighted_trees_are_optimal(seed):
    """Hill-valley merging is as good as a trial of all orders, for trees that join and trees that fork."""
    for graph in (graphs.random_in_tree(11, seed), graphs.random_out_tree(11, seed)):
        order = tree_order(order_problem(graph))
        assert order is not None
        assert peak_of(graph, order) == brute_force_peak(graph)


def test_a_forest_with_mutation_is_still_a_forest():
    ops = [
        OpSpec("a", makes={"x": 5}),
        OpSpec("grow", writes=["x"], workspace_bytes=9),
        OpSpec("b", makes={"y": 7}, workspace_bytes=1),
        OpSpec("shrink", reads=["y"], makes={"small": 1}),
        OpSpec("join", reads=["x", "small"], makes={"out": 1}),
    ]
    graph = Graph.build(ops, keep=["out"])
    order = tree_order(order_problem(graph))
    assert order is not None
    assert peak_of(graph, order) == brute_force_peak(graph)


def test_a_shared_buffer_makes_a_tree_of_ops_no_tree():
    """Which child of the fork runs last is up to the order, so hills and valleys are not fixed."""
    assert tree_order(order_problem(graphs.fork_join(3))) is None
    shared = Graph.build([("a", [], {"x": 1}, 1), ("b", ["x"], {"y": 1}, 1), ("c", ["x"], {"z": 1}, 1)])
    assert tree_order(order_problem(shared)) is None


def test_large_trees_are_solved_exactly():
    graph = graphs.random_in_tree(5_000, seed=1)
    result = best_order(graph, time_limit_s=30)
    assert result.proven
    assert result.method == "tree" or result.peak_bytes == must_live_bound(graph)


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_search_finds_what_trying_all_orders_finds(seed):
    graph = graphs.random_layered(14, 4, seed, fan_in=2, largest=9)
    found = search_orders(order_problem(graph), 10**9, 0, 1_000, Clock.of(60))
    assert found.order is not None
    assert peak_of(graph, found.order) == found.lower_bound_bytes == brute_force_peak(graph)


def test_the_exact_search_proves_that_the_known_optimum_cannot_be_beaten():
    graph = graphs.random_layered(40, 5, seed=3)
    problem = order_problem(graph)
    best = search_orders(problem, 10**9, 0, 100_000, Clock.of(60)).lower_bound_bytes
    again = search_orders(problem, best, 0, 100_000, Clock.of(60))
    assert (again.order, again.lower_bound_bytes) == (None, best)


def test_a_search_that_runs_out_of_memory_still_gives_a_bound():
    graph = graphs.random_layered(60, 8, seed=1)
    optimum = best_order(graph, time_limit_s=60).peak_bytes
    stopped = search_orders(order_problem(graph), optimum, 0, 500, Clock.of(60))
    assert stopped.order is None
    assert 0 < stopped.lower_bound_bytes <= optimum


@pytest.mark.parametrize("seed", range(3))
def test_cpsat_agrees_with_the_exact_search(seed):
    graph = graphs.random_layered(20, 4, seed)
    problem = order_problem(graph)
    optimum = best_order(graph)
    assert optimum.proven
    order, bound = cpsat_order(problem, np.arange(graph.num_ops), 0, effort=20.0, seed=0, clock=Clock.of(60))
    assert order is not None
    assert peak_of(graph, order) == bound == optimum.peak_bytes


def test_an_order_read_backwards_has_the_same_peak_in_the_mirrored_problem():
    from memwatch.planner.order.problem import peak_of as kernel_peak

    graph = graphs.random_layered(60, 6, seed=2)
    problem = order_problem(graph)
    for _, order in inductor_orders(problem):
        assert kernel_peak(problem, order) == peak_of(graph, order)
        assert kernel_peak(mirror_image(problem), order[::-1].copy()) == peak_of(graph, order)


@pytest.mark.parametrize("seed", range(3))
def test_every_candidate_of_the_portfolio_is_a_valid_order(seed):
    """The simulator refuses an order that computes something else."""
    candidates = 0
    for graph in (graphs.random_layered(70, 9, seed), graphs.random_training(70, seed), graphs.pyramid(6)):
        problem, clock = order_problem(graph), Clock.of(60)
        for _, order in (*list_orders(problem, clock), *beam_orders(problem, seed, clock)):
            assert peak_of(graph, order) >= lower_bound(graph, recompute=False)
            candidates += 1
    assert candidates == 3 * 10


def test_a_wide_beam_is_close_to_the_optimum():
    graph = graphs.random_layered(100, 6, seed=2)
    optimum = best_order(graph)
    beams = [peak_of(graph, order) for _, order in beam_orders(order_problem(graph), 0, Clock.of(60))]
    assert optimum.proven
    assert optimum.peak_bytes <= min(beams) <= 1.15 * optimum.peak_bytes


@pytest.mark.parametrize("width", [20, 50])
def test_layered_programs_of_a_thousand_ops_beat_the_best_of_inductors_three_by_a_tenth(width):
    graph = graphs.random_layered(1_000, width, seed=5)
    inductor = min(peak_of(graph, order) for _, order in inductor_orders(order_problem(graph)))
    assert best_order(graph, time_limit_s=60).peak_bytes <= 0.9 * inductor


def test_the_same_seed_gives_the_same_order():
    graph = graphs.random_layered(80, 8, seed=4)
    first, second = (best_order(graph, time_limit_s=60, seed=7) for _ in range(2))
    assert np.array_equal(first.order, second.order)
    assert (first.lower_bound_bytes, first.method) == (second.lower_bound_bytes, second.method)


def test_no_time_at_all_still_gives_an_order_that_is_not_worse_than_the_program():
    graph = graphs.random_layered(3_000, 30, seed=6)
    assert best_order(graph, time_limit_s=0.0).peak_bytes <= program_peak(graph).peak_bytes


@pytest.mark.parametrize("readings", [0, 3, 5, 8, 13, 40])
def test_a_time_that_is_up_in_the_middle_gives_a_valid_order_with_true_figures(readings):
    """Wherever the search is cut off: the peak is the order's, not above the program's, nor below the bound."""
    graph = graphs.random_layered(140, 14, seed=8, fan_in=2)
    result = find_order(graph, seed=0, clock=clock_of_readings(readings))
    assert result.peak_bytes == peak_of(graph, result.order)
    assert result.lower_bound_bytes <= result.peak_bytes <= program_peak(graph).peak_bytes


def test_effects_and_mutation_are_kept_in_order_by_the_best_order():
    from memwatch.planner import Effect

    ops = [OpSpec(f"rand{i}", makes={f"x{i}": 10 - i}, effect=Effect.RNG) for i in range(8)]
    ops += [OpSpec(f"use{i}", reads=[f"x{i}"], writes=["state"]) for i in reversed(range(8))]
    graph = Graph.build(ops)
    result = best_order(graph)
    assert result.peak_bytes == peak_of(graph, result.order)
    assert [op for op in result.order.tolist() if op < 8] == list(range(8))


def test_a_users_own_order_is_checked_and_priced():
    graph = graphs.thunder_1337(3, relus_first=True)

    def depth_first(given: Graph) -> list[int]:
        def path(op: int) -> int:
            return int("".join(letter for letter in given.op_names[op] if letter.isdigit()))

        return sorted(range(given.num_ops), key=lambda op: (path(op), op))

    assert custom_order(graph, depth_first).peak_bytes == 768 * 1024


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda graph: range(graph.num_ops - 1), "is missing"),
        (lambda graph: [0, *range(graph.num_ops)], "op 0 twice"),
        (lambda graph: [0] * graph.num_ops, "missing"),
        (lambda graph: list(range(graph.num_ops))[::-1], "is not valid: op"),
        (lambda graph: ["mm0"] * graph.num_ops, "sequence of op indices"),
        (lambda _: None, "sequence of op indices"),
    ],
)
def test_a_users_order_that_is_none_is_refused(order, message):
    with pytest.raises(OrderError, match=message):
        custom_order(graphs.thunder_1337(2), order)


@pytest.mark.parametrize("seed", range(4))
def test_the_must_live_bound_is_tight_on_training_steps(seed):
    """Updates next to their gradients take the gradients off the peak; nothing else can be moved."""
    graph = graphs.random_training(100, seed)
    best = best_order(graph)
    assert working_set_bound(graph) < must_live_bound(graph) == best.peak_bytes


def test_what_is_kept_is_a_bound():
    graph = Graph.build([("a", [], {"x": 3}, 1), ("b", [], {"y": 4}, 1)], keep=["x", "y"])
    assert (working_set_bound(graph), pinned_bound(graph)) == (4, 7)
    assert lower_bound(graph, recompute=True) == lower_bound(graph, recompute=False) == 7


def test_without_ortools_the_portfolio_stops_at_its_own_bound(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    graph = graphs.random_layered(140, 14, seed=8, fan_in=2)
    result = find_order(graph, seed=0, clock=clock_of_readings(40))
    assert lower_bound(graph, recompute=False) <= result.lower_bound_bytes <= result.peak_bytes
    assert result.peak_bytes < program_peak(graph).peak_bytes
