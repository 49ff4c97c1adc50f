"""Exact search for small programs: an optimal order, or a proven lower bound."""

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
    """Result of the search.

    Attributes:
        order: an order with the lowest possible peak, None when none below the known peak was found.
        lower_bound_bytes: peak that no order can go below (bytes); the known peak when it is optimal.
        expansions: how many downsets were expanded.
    """

    order: IntArray | None
    lower_bound_bytes: int
    expansions: int


def search_orders(
    problem: Problem, known_peak_bytes: int, lower_bound_bytes: int, max_states: int, clock: Clock
) -> SearchResult:
    """Return an order that is better than the best known one, or a bound.

    The search is best-first over downsets with the peak as priority (SERENITY, MLSys 2020, keys its dynamic
    program in the same way); chains that are safe run at once. The program and its mirror image are searched
    side by side and share their bound, because either may have far fewer downsets than the other.

    Args:
        problem: the ordering problem.
        known_peak_bytes: peak of the best order known; the search is for a lower one.
        lower_bound_bytes: a bound that holds for every order.
        max_states: how many downsets each direction may remember.
        clock: when to stop.
    """
    return _search(problem, known_peak_bytes, lower_bound_bytes, max_states, clock)


def beat_or_prove(problem: Problem, known_peak_bytes: int, max_states: int, clock: Clock) -> SearchResult:
    """Return any order under a known peak, or the proof that there is none; else a bound of 0.

    The level is one byte under the known peak from the start. So more chains are safe and fewer downsets are
    expanded than by `search_orders`, which is slower but has a bound when it is cut off.
    """
    found = _search(problem, known_peak_bytes, known_peak_bytes - 1, max_states, clock)
    is_proof = found.order is None and found.lower_bound_bytes >= known_peak_bytes
    return found if is_proof else SearchResult(found.order, 0, found.expansions)


def _search(
    problem: Problem, known_peak_bytes: int, level: int, max_states: int, clock: Clock
) -> SearchResult:
    """Raise the level until an order is found or none can be under the known peak."""
    directions = [_Direction(problem, max_states), _Direction(mirrored(problem), max_states)]
    level = max(level, *(direction.level for direction in directions))
    # two threads that meet after a fixed number of expansions: faster than one, and the result stays the same
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
    """The search in one direction: of the program, or of its mirror image."""

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
        """How many downsets were expanded so far."""
        from memwatch.planner.order._search import EXPANDED

        return int(self._tally[EXPANDED])

    def advance(self, level: int, below: int) -> None:
        """Expand some more downsets."""
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
