"""Compile the kernels of the order search, or load them from the cache, before a time limit counts."""

from __future__ import annotations

from functools import cache

import numpy as np

from memwatch.planner.bounds import lower_bound
from memwatch.planner.clock import Clock
from memwatch.planner.graph import Graph
from memwatch.planner.order.anneal import anneal_order
from memwatch.planner.order.exact import search_orders
from memwatch.planner.order.lists import beam_orders, list_orders
from memwatch.planner.order.problem import order_problem
from memwatch.planner.peak import simulate
from memwatch.planner.schedule import Schedule


@cache
def warm_up() -> None:
    """Run every kernel once on a program of three ops."""
    graph = Graph.build([("a", (), {"x": 2}, 1), ("b", ("x",), {"y": 1}, 1), ("c", ("x", "y"), {}, 1)])
    problem = order_problem(graph)
    clock = Clock.of(600)
    list(list_orders(problem, clock))
    list(beam_orders(problem, 0, clock))
    lower_bound(graph, recompute=False)
    anneal_order(problem, np.arange(3), 0, rounds=1, moves=10, seed=0, clock=clock)
    search_orders(problem, 1 << 40, 0, 100, clock)
    simulate(graph, Schedule.from_order(range(3)))
