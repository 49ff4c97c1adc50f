"""Chains: Revolve's counts and the rotor dynamic program, against definitions of their own."""

from __future__ import annotations

import random
from functools import cache
from math import comb

import numpy as np
import pytest
from planner_recompute_graphs import uniform_chain

from memwatch.planner import Schedule, plan_graph, simulate
from memwatch.planner.recompute.seeds import RotorTable


def revolve_forwards(length: int, snapshots: int) -> int:
    """Return the fewest forward steps that reverse a uniform chain.

    The formula is from Griewank & Walther, Algorithm 799 (2000): r * l - beta(c + 1, r - 1). Here beta(c, r) is
    C(c + r, c), and r is the integer with beta(c, r - 1) < l <= beta(c, r).

    Args:
        length: steps of the chain, l.
        snapshots: states that may be stored, the initial one included, c.
    """
    rounds = 0
    while comb(snapshots + rounds, snapshots) < length:
        rounds += 1
    return rounds * length - comb(snapshots + rounds, snapshots + 1) if rounds else 0


def revolve_steps(length: int, snapshots: int) -> list[tuple[str, int]]:
    """Return a reversal of a uniform chain with the fewest forward steps.

    Args:
        length: steps of the chain.
        snapshots: states that may be stored, the initial one included.

    Returns:
        ``("forward", i)``: compute state i + 1 from state i; ``("store", i)`` and ``("drop", i)``: keep and
        drop a snapshot of state i; ``("adjoint", i)``: reverse step i, which needs state i.
    """
    steps: list[tuple[str, int]] = [("store", 0)]
    # (first, last, snapshots): reverse the steps from first to before last, whose first state is stored
    waiting: list[tuple[int, int, int] | tuple[int]] = [(0, length, snapshots)]
    while waiting:
        task = waiting.pop()
        if len(task) == 1:
            steps.append(("drop", task[0]))
            continue
        first, last, free = task
        if last - first == 1:
            steps.append(("adjoint", first))
            continue
        middle = first + revolve_split(last - first, free) if free > 1 else last - 1
        steps += [("forward", state) for state in range(first, middle)]
        if free == 1:
            steps.append(("adjoint", middle))
            waiting.append((first, middle, 1))
            continue
        steps.append(("store", middle))
        waiting += [(first, middle, free), (middle,), (middle, last, free - 1)]
    return [*steps, ("drop", 0)]


def revolve_split(length: int, snapshots: int) -> int:
    """Return the number of steps to advance before the next snapshot."""
    return min(
        range(1, length),
        key=lambda k: k + revolve_forwards(length - k, snapshots - 1) + revolve_forwards(k, snapshots),
    )


@cache
def forwards_by_definition(length: int, snapshots: int) -> int:
    """F(l, c) = min over k of k + F(l - k, c - 1) + F(k, c), with F(1, .) = 0."""
    if length == 1:
        return 0
    if snapshots == 1:
        return length * (length - 1) // 2
    return min(
        k + forwards_by_definition(length - k, snapshots - 1) + forwards_by_definition(k, snapshots)
        for k in range(1, length)
    )


def test_revolve_counts_equal_the_recurrence():
    """The closed form is the optimum of the recurrence for all l <= 100, c <= 10."""
    for length in range(1, 101):
        for snapshots in range(1, 11):
            assert revolve_forwards(length, snapshots) == forwards_by_definition(length, snapshots)


@pytest.mark.parametrize(
    ("length", "snapshots", "forwards"),
    [(10, 3, 15), (16, 3, 33), (32, 5, 68), (50, 5, 122), (64, 4, 200), (100, 10, 222), (1000, 20, 2747)],
)
def test_revolve_published_values(length, snapshots, forwards):
    """Values printed by Griewank & Walther's own program."""
    assert revolve_forwards(length, snapshots) == forwards


def run_reversal(length: int, snapshots: int) -> int:
    """Execute the steps on paper; return the forward steps taken."""
    stored: set[int] = set()
    state, reversed_, forwards, most = 0, [], 0, 0
    for what, index in revolve_steps(length, snapshots):
        if what == "store":
            assert state == index, "only the state at hand can be stored"
            stored.add(index)
        elif what == "drop":
            stored.remove(index)
        elif what == "forward":
            assert state == index or index in stored
            state = index + 1
            forwards += 1
        else:
            assert state == index or index in stored
            reversed_.append(index)
        most = max(most, len(stored))
    assert reversed_ == list(reversed(range(length)))
    assert most <= snapshots
    assert not stored
    return forwards


def test_revolve_steps_are_executable_and_optimal():
    """Every schedule reverses the chain within its snapshots in exactly the fewest steps."""
    for length in range(1, 101):
        for snapshots in range(1, 11):
            assert run_reversal(length, snapshots) == revolve_forwards(length, snapshots)


@pytest.mark.parametrize("seed", range(5))
def test_rotor_table_is_the_optimum_of_its_recurrence(seed):
    """Keep all of the first stage, or run to a later checkpoint and come back: the table takes the best."""
    rng = random.Random(seed)
    length = 7
    costs = np.array([rng.randint(1, 9) for _ in range(length)], dtype=float)
    checkpoint = np.array([rng.randint(1, 4) for _ in range(length)])
    saved = checkpoint + np.array([rng.randint(0, 5) for _ in range(length)])
    slots = int(saved.sum())

    @cache
    def best(first: int, last: int, memory: int) -> float:
        options = [float("inf")]
        if saved[first] <= memory:
            options.append(best(first + 1, last, memory - saved[first]) if first < last else 0.0)
        for split in range(first + 1, last + 1):
            if checkpoint[split - 1] <= memory:
                forward = costs[first:split].sum()
                after = best(split, last, memory - checkpoint[split - 1])
                options.append(forward + after + best(first, split - 1, memory))
        return min(options)

    table = RotorTable(costs, checkpoint, saved, slots)
    for memory in range(slots + 1):
        assert table.extra_cost(memory) == best(0, length - 1, memory)
        steps = table.steps(memory)
        ran = sum(costs[stage] for what, stage in steps if what == "forward")
        assert not steps or ran == costs.sum() + table.extra_cost(memory)


@pytest.mark.parametrize(("length", "snapshots"), [(10, 3), (16, 3), (32, 5), (64, 4)])
def test_plans_of_uniform_chains_need_no_more_than_revolve(length, snapshots):
    """Given the peak of Revolve's own schedule, a plan computes no more steps again than Revolve."""
    graph = uniform_chain(length)
    order = [graph.op_index["x0"]]
    for what, step in revolve_steps(length, snapshots):
        if what in {"forward", "adjoint"}:
            order.append(graph.op_index[f"x{step + 1}" if what == "forward" else f"g{step}"])
    peak_bytes = simulate(graph, Schedule.from_order(order)).peak_bytes
    plan = plan_graph(graph, budget=peak_bytes)
    assert plan.peak_increase_bytes <= peak_bytes
    assert len(plan.order) - graph.num_ops <= revolve_forwards(length, snapshots) - (length - 1)
