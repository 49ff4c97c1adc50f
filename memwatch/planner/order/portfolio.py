"""Find a good order: try cheap candidates, then annealing, then exact searches, as far as size and time allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.graph import OrderError
from memwatch.planner.order import exact
from memwatch.planner.order.anneal import anneal_order
from memwatch.planner.order.bounds import lower_bound
from memwatch.planner.order.exact import beat_or_prove, search_orders
from memwatch.planner.order.lists import beam_orders, list_orders, tree_order
from memwatch.planner.order.problem import Problem, order_problem, peak_of
from memwatch.planner.peak import Schedule, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.graph import Graph, IntArray
    from memwatch.planner.request import Clock


# the largest programs (ops) that each method is tried on
_LARGEST_TREE = 50_000  # a guess, as the next three
_LARGEST_BEAM = 5_000
_LARGEST_SEARCH = 512
_LARGEST_CPSAT = 150
_CPSAT_EFFORT = 1.0  # deterministic time of the solver, about a second
_CPSAT_START_S = 0.3  # building the solver's model takes about this long


@dataclass(frozen=True, slots=True, eq=False)
class OrderResult:
    """An order of all ops, its peak, and a lower bound.

    Attributes:
        order: op indices.
        peak_bytes: its peak (bytes).
        lower_bound_bytes: bytes that every order without recompute needs.
        proven: whether the peak equals the bound.
        method: name of the method that found the order.
    """

    order: IntArray
    peak_bytes: int
    lower_bound_bytes: int
    proven: bool
    method: str


class _Best:
    """The best order so far and the best bound so far."""

    def __init__(self, problem: Problem, bound_bytes: int) -> None:
        self.problem = problem
        self.bound_bytes = bound_bytes
        self.order = np.arange(problem.num_ops)
        self.peak_bytes = -1
        self.method = "program"

    @property
    def is_proven(self) -> bool:
        """Whether no order can be better."""
        return 0 <= self.peak_bytes <= self.bound_bytes

    def consider(self, order: IntArray, method: str) -> None:
        """Keep an order if it is better than the best one so far."""
        peak = int(peak_of(self.problem, order))
        if self.peak_bytes < 0 or peak < self.peak_bytes:
            self.order = order
            self.peak_bytes = peak
            self.method = method


def find_order(graph: Graph, *, seed: int, clock: Clock) -> OrderResult:
    """Return the result that `plan_search.best_order` describes, before `clock` is over. It needs the kernels."""
    clock = clock.share(0.93)  # checking the result takes the rest
    problem = order_problem(graph)
    best = _Best(problem, lower_bound(graph, recompute=False))
    for method, order in list_orders(problem, clock.share(0.5)):
        best.consider(order, method)
    if not best.is_proven:
        _improve(best, seed, clock)
    result = simulate(graph, Schedule.from_order(best.order))
    assert result.peak_bytes == best.peak_bytes, "the two simulators disagree"
    bound = min(best.bound_bytes, best.peak_bytes)
    return OrderResult(best.order, best.peak_bytes, bound, bound == best.peak_bytes, best.method)


def _improve(best: _Best, seed: int, clock: Clock) -> None:
    """Try the expensive methods, until one of them proves that the best order is optimal."""
    problem = best.problem
    if problem.num_ops <= _LARGEST_TREE:
        order = tree_order(problem)
        if order is not None:
            best.consider(order, "tree")
            best.bound_bytes = best.peak_bytes  # `tree_order` is optimal
            return
    if problem.num_ops <= _LARGEST_BEAM:
        for method, order in beam_orders(problem, seed, clock.share(0.25)):
            best.consider(order, method)
            if best.is_proven:
                return
    small = problem.num_ops <= _LARGEST_SEARCH
    rounds, moves = _effort(problem.num_ops)
    order = anneal_order(
        problem,
        best.order,
        best.bound_bytes,
        rounds=rounds,
        moves=moves,
        seed=seed,
        clock=clock.share(0.5) if small else clock,
    )
    best.consider(order, "annealing")
    if small and not best.is_proven:
        _search_exactly(best, clock)
    if (
        problem.num_ops <= _LARGEST_CPSAT
        and not best.is_proven
        and exact.is_cpsat_available()
        and clock.left_s() > _CPSAT_START_S
    ):
        found, best.bound_bytes = exact.cpsat_order(
            problem, best.order, best.bound_bytes, effort=_CPSAT_EFFORT, seed=seed, clock=clock
        )
        if found is not None:
            best.consider(found, "cp-sat")


def _effort(num_ops: int) -> tuple[int, int]:
    """Return the rounds of the annealing, and the moves per round, for a program of this size. All are guesses."""
    if num_ops <= 32:
        return 4, 20_000
    if num_ops <= 128:
        return 6, 500 * num_ops  # the exact search does the rest
    if num_ops <= _LARGEST_SEARCH:
        return 8, 1_000 * num_ops
    return 8, min(1_500 * num_ops, 12_000_000)


def _search_exactly(best: _Best, clock: Clock) -> None:
    """Search exactly: first for any better order, and then, with the time that is left, for a bound."""
    # a downset takes memory for each op, so fewer downsets of a larger program are remembered; a guess
    max_states = 30_000_000 // max(best.problem.num_ops, 64)
    most_of_time = clock.share(0.8)
    while not best.is_proven:
        found = beat_or_prove(best.problem, best.peak_bytes, max_states, most_of_time)
        best.bound_bytes = max(best.bound_bytes, found.lower_bound_bytes)
        if found.order is None:
            break
        best.consider(found.order, "exact search")
    if not best.is_proven:
        found = search_orders(best.problem, best.peak_bytes, best.bound_bytes, max_states, clock)
        best.bound_bytes = max(best.bound_bytes, found.lower_bound_bytes)
        if found.order is not None:
            best.consider(found.order, "exact search")


def custom_order(graph: Graph, order: Callable[[Graph], Sequence[int]], name: str = "") -> OrderResult:
    """Return the order that a function computes for a graph, checked and with its peak.

    Raises:
        OrderError: the result is not an order of all ops, each once, that computes the program.
    """
    name = name or getattr(order, "__name__", repr(order))
    returned = order(graph)
    try:
        indices = [int(index) for index in returned]
    except (TypeError, ValueError):
        raise OrderError(f"{name} returned {returned!r}; an order is a sequence of op indices") from None
    twice = [index for index, count in Counter(indices).items() if count > 1]
    if twice:
        raise OrderError(f"{name} returned op {twice[0]} twice; an order names every op once")
    schedule = Schedule.from_order(indices)
    try:
        peak = simulate(graph, schedule).peak_bytes
    except OrderError as error:
        raise OrderError(f"{name} returned an order that is not valid: {error}") from error
    bound = lower_bound(graph, recompute=False)
    return OrderResult(schedule.index, peak, bound, peak == bound, name)
