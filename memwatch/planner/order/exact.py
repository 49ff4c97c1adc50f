"""Exact search for small programs: the optimum, or a proven lower bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.order.problem import mirrored

if TYPE_CHECKING:
    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem

_EXPANSIONS_PER_CALL = 500


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """What the search found.

    Attributes:
        order: an order with the lowest peak possible, None when none below the known peak was found.
        lower_bound_bytes: no order has a lower peak (bytes); the known peak when nothing beats it.
        expansions: downsets looked at.
    """

    order: IntArray | None
    lower_bound_bytes: int
    expansions: int


def search_orders(
    problem: Problem, known_peak_bytes: int, lower_bound_bytes: int, max_states: int, clock: Clock
) -> SearchResult:
    """Search for an order that is better than the best known one.

    Best-first over downsets with the peak as the priority (SERENITY, MLSys 2020, keys its dynamic
    program the same way), collapsed by safe moves. The program and its mirror image are searched side by
    side and share their bound: either alone may have far fewer downsets.

    Args:
        problem: the ordering problem.
        known_peak_bytes: peak of the best order known; the search looks for less.
        lower_bound_bytes: a bound that holds for every order.
        max_states: how many downsets each direction may remember.
        clock: when to stop.
    """
    return _search(problem, known_peak_bytes, lower_bound_bytes, max_states, clock)


def beat_or_prove(problem: Problem, known_peak_bytes: int, max_states: int, clock: Clock) -> SearchResult:
    """Search for any order under a known peak; the bound is 0 where neither is found nor excluded.

    The level is one byte under the known peak from the start, so more moves are safe and fewer downsets
    have to be looked at than by `search_orders`, which is slower and gives a bound when it is cut off.
    """
    found = _search(problem, known_peak_bytes, known_peak_bytes - 1, max_states, clock)
    is_proof = found.order is None and found.lower_bound_bytes >= known_peak_bytes
    return found if is_proof else SearchResult(found.order, 0, found.expansions)


def _search(
    problem: Problem, known_peak_bytes: int, level: int, max_states: int, clock: Clock
) -> SearchResult:
    """Raise the level from where it is until an order is found or none can be under the known peak."""
    directions = [_Direction(problem, max_states), _Direction(mirrored(problem), max_states)]
    level = max(level, *(direction.level for direction in directions))
    # two threads that meet after a fixed number of expansions: faster, and still the same result every time
    with ThreadPoolExecutor(len(directions)) as pool:
        while level < known_peak_bytes and not clock.is_over():
            at_work = [direction for direction in directions if direction.goes_on]
            if not at_work:
                break
            list(pool.map(_Direction.advance, at_work, repeat(level), repeat(known_peak_bytes)))
            level = max(level, *(direction.level for direction in directions))
            forwards, backwards = (direction.order for direction in directions)
            if forwards is not None:
                return SearchResult(forwards, level, _expansions(directions))
            if backwards is not None:
                return SearchResult(backwards[::-1].copy(), level, _expansions(directions))
    return SearchResult(None, level, _expansions(directions))


def _expansions(directions: list[_Direction]) -> int:
    return sum(direction.expansions for direction in directions)


class _Direction:
    """One direction of the search."""

    def __init__(self, problem: Problem, max_states: int) -> None:
        from memwatch.planner.order import _needs
        from memwatch.planner.order import _search as store
        from memwatch.planner.order._lists import breadth_first
        from memwatch.planner.order._state import live_at_start

        self._problem = problem
        self._needs = _needs.needs_matrix(problem, _needs.ancestors(problem, breadth_first(problem)))
        self._search = store.new_search(problem.num_ops, max_states)
        self._tally = self._search.tally
        empty = np.zeros(self._search.words.shape[1], dtype=np.uint64)
        live = live_at_start(problem)
        start = store.remember(self._search, empty, -1 - store.find(self._search, empty), live)
        self._search.node[start] = -1
        self._search.stack[0] = start
        self._tally[store.STACKED] = 1
        self.level = max(live, int(self._needs.certain.max()))
        self.order: IntArray | None = None
        self.goes_on = True

    @property
    def expansions(self) -> int:
        """Downsets looked at so far."""
        from memwatch.planner.order._search import EXPANDED

        return int(self._tally[EXPANDED])

    def advance(self, level: int, below: int) -> None:
        """Look at some more downsets."""
        from memwatch.planner.order import _exact as kernel
        from memwatch.planner.order._search import LEVEL

        self._tally[LEVEL] = max(level, int(self._tally[LEVEL]))
        status, node = kernel.advance(self._problem, self._needs, self._search, below, _EXPANSIONS_PER_CALL)
        self.level = below if status == kernel.EXHAUSTED else int(self._tally[LEVEL])
        if status == kernel.FOUND:
            self.order = self._path(int(node))
        self.goes_on = bool(status == kernel.RUNNING)

    def _path(self, node: int) -> IntArray:
        order = np.empty(self._problem.num_ops, dtype=np.int64)
        for position in range(len(order) - 1, -1, -1):
            order[position] = self._search.op[node]
            node = int(self._search.parent[node])
        return order
