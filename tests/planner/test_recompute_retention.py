"""CP-SAT's retention intervals: the proven optimum that the search is measured against."""

from __future__ import annotations

import random

import numpy as np
import pytest
from planner_recompute_graphs import layered_graph, linear_graph, training_chain, unet_step

from memwatch.planner import Graph, OpSpec, Schedule, plan_graph, program_peak, simulate
from memwatch.planner.recompute.retention import can_model, solve_retention
from memwatch.planner.request import Clock


@pytest.mark.parametrize(
    ("length", "budget", "copies", "recomputes"), [(4, 3, 4, 6), (8, 5, 3, 5), (12, 7, 3, 7)]
)
def test_the_solver_proves_checkmates_linear_graphs(length, budget, copies, recomputes):
    """The model is right: it proves the known optimum and its schedule fits."""
    graph = linear_graph(length)
    result = solve_retention(graph, budget, copies=copies, effort=20, clock=Clock.of(60))
    assert result.proven
    assert result.extra_cost == recomputes
    assert simulate(graph, Schedule.from_order(result.tokens)).peak_bytes <= budget
    assert len(result.tokens) - graph.num_ops == recomputes


@pytest.mark.parametrize("seed", range(6))
def test_plans_cost_at_most_five_percent_more_than_the_optimum(seed):
    """In program order, extra cost is within 1.05 of the proven optimum; a free order costs no more."""
    rng = random.Random(seed)
    graph = (training_chain(10, rng), unet_step(3, rng), layered_graph(6, 4, rng))[seed % 3]
    budget = int(program_peak(graph).peak_bytes * 0.8)
    plan = plan_graph(graph, budget=budget, order="program")
    result = solve_retention(graph, budget, hint=plan.schedule.ops, effort=20, clock=Clock.of(60))
    assert result.proven
    assert plan.extra_cost_ratio * graph.total_cost <= 1.05 * result.extra_cost + 1e-6
    assert plan_graph(graph, budget=budget).extra_cost_ratio <= plan.extra_cost_ratio + 1e-9


def test_the_solver_starts_from_the_hinted_schedule():
    """A schedule that fits the budget is a solution of the model."""
    from ortools.sat.python import cp_model

    from memwatch.planner.recompute import retention

    graph = linear_graph(8)
    plan = plan_graph(graph, budget=5, order="program")
    model = retention._Model(graph, 5 - graph.baseline_bytes, 4, cp_model.CpModel())
    model.hint(plan.schedule.ops)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.cp) in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    assert sorted(model.tokens(solver)) == sorted(plan.schedule.ops)


def test_mutation_is_left_to_the_search():
    """A program with mutation is outside the model."""
    assert can_model(linear_graph(3))
    ops = [OpSpec("a", (), {"x": 1}), OpSpec("b", (), writes=("x",))]
    assert not can_model(Graph.build(ops))


def test_a_budget_below_every_schedule_is_proven_impossible():
    """The solver says so instead of giving a schedule."""
    result = solve_retention(linear_graph(4), 2, clock=Clock.of(60))
    assert result.tokens is None
    assert result.proven
    assert np.isinf(result.extra_cost)
