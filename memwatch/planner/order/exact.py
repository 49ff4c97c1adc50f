"""Search small programs exactly, for an optimal order or a proven lower bound.

A *downset* is a set of ops that can have run at some time: with each op, it contains every op that must run before. The
live buffers depend on the downset alone, and not on the order of its ops. The peak of a downset is the lowest peak of
the known orders of its ops.

The search has a *level* (bytes). It expands the downsets whose peak is at most the level, and then raises the level.
In `search_orders` the level begins at a proven bound, so it is a lower bound at any time. In `beat_or_prove` it begins
just under the known peak. There it is a bound only if the search has expanded all downsets.

The solver CP-SAT of OR-tools (installed by the pip extra `exact`) proves optima too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call
from memwatch.planner.order.lists import breadth_first
from memwatch.planner.order.problem import live_at_start, mirror_image, peak_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ortools.sat.python.cp_model import CpModel, IntervalVar, IntVar

    from memwatch.planner.graph import IntArray
    from memwatch.planner.order.problem import Problem
    from memwatch.planner.request import Clock

_EXPANSIONS_PER_CALL = 500  # downsets expanded between two checks of the clock; a guess
# `Status` in exact.h: 3 is a search whose memory is full
RUNNING, FOUND, EXHAUSTED = 0, 1, 2
LEVEL = 4  # the place of the level in `Search.tally`: `Tally` in search.h names all of them


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Result of the search.

    Attributes:
        order: an order below the known peak; None if the search found none.
        lower_bound_bytes: peak that no order can go below (bytes). It equals the known peak if that peak is optimal.
    """

    order: IntArray | None
    lower_bound_bytes: int


def search_orders(
    problem: Problem, known_peak_bytes: int, lower_bound_bytes: int, max_states: int, clock: Clock
) -> SearchResult:
    """Return an order that is better than the best known one, or a bound.

    The search is a best-first search over downsets with the peak as priority. SERENITY (MLSys 2020) keys its dynamic
    program in the same way. A chain of ops that fits under the level without adding live bytes runs at once, before
    other orders are searched (`safe_run` in `downset.h`). The program and its mirror image are searched side by side.
    They share their bound, because one of them may have far fewer downsets.

    Args:
        problem: the ordering problem.
        known_peak_bytes: peak of the best known order. Only lower peaks are searched for.
        lower_bound_bytes: a bound that holds for every order.
        max_states: how many downsets each direction may remember.
        clock: when to stop.
    """
    return _raise_level(problem, known_peak_bytes, lower_bound_bytes, max_states, clock)


def beat_or_prove(problem: Problem, known_peak_bytes: int, max_states: int, clock: Clock) -> SearchResult:
    """Return any order under a known peak, or the proof that no such order exists. Without a proof the bound is 0.

    The level is one byte under the known peak from the start. So more chains run without a search, and fewer downsets
    are expanded than in `search_orders`. That search is slower, but it has a bound even if the clock stops it.
    """
    found = _raise_level(problem, known_peak_bytes, known_peak_bytes - 1, max_states, clock)
    is_proof = found.order is None and found.lower_bound_bytes >= known_peak_bytes
    return found if is_proof else SearchResult(found.order, 0)


def _raise_level(
    problem: Problem, known_peak_bytes: int, level: int, max_states: int, clock: Clock
) -> SearchResult:
    """Raise the level until an order is found, or until the level reaches the known peak."""
    directions = [_Direction(problem, max_states), _Direction(mirror_image(problem), max_states)]
    level = max(level, *(direction.level for direction in directions))
    # Two threads are faster than one. They meet after a fixed number of expansions, so that the result stays the same.
    with ThreadPoolExecutor(len(directions)) as pool:
        while level < known_peak_bytes and not clock.is_over():
            at_work = [direction for direction in directions if direction.goes_on]
            if not at_work:
                break
            list(pool.map(_Direction.advance, at_work, repeat(level), repeat(known_peak_bytes)))
            level = max(level, *(direction.level for direction in directions))
            forwards, backwards = (direction.order for direction in directions)
            if forwards is not None:
                return SearchResult(forwards, level)
            if backwards is not None:
                return SearchResult(backwards[::-1].copy(), level)
    return SearchResult(None, level)


class _Direction:
    """The search in one direction: of the program, or of its mirror image."""

    def __init__(self, problem: Problem, max_states: int) -> None:
        self._problem = problem
        self._needs = needs_matrix(problem, ancestors(problem, breadth_first(problem)))
        self._search = new_search(problem.num_ops, max_states)
        self._tally = self._search.tally
        live = live_at_start(problem)
        call("begin_search", self._search, live)
        self.level = max(live, int(self._needs.certain.max()))
        self.order: IntArray | None = None
        self.goes_on = True

    def advance(self, level: int, below: int) -> None:
        """Expand some more downsets."""
        self._tally[LEVEL] = max(level, int(self._tally[LEVEL]))
        status, node = advance(self._problem, self._needs, self._search, below, _EXPANSIONS_PER_CALL)
        self.level = below if status == EXHAUSTED else int(self._tally[LEVEL])
        if status == FOUND:
            self.order = self._path(int(node))
        self.goes_on = bool(status == RUNNING)

    def _path(self, node: int) -> IntArray:
        order = np.empty(self._problem.num_ops, dtype=np.int64)
        for position in range(len(order) - 1, -1, -1):
            order[position] = self._search.op[node]
            node = int(self._search.parent[node])
        return order


def advance(
    problem: Problem, needs: Needs, search: Search, below: int, max_expansions: int
) -> tuple[int, int]:
    """Expand downsets: first those with a peak up to the level, the newest first, then the one with the lowest peak.

    Args:
        problem: the ordering problem.
        needs: the bytes that must be live at every op.
        search: the state of the search, kept from call to call.
        below: only orders with a peak under this are searched for (bytes).
        max_expansions: how many downsets to expand before returning RUNNING.

    Returns:
        (status, path). FOUND: the path leads to an order whose peak is at most the level. EXHAUSTED: no order has a
        peak under `below`. FULL: the memory of the search is used up. RUNNING: call again.
    """
    found = np.zeros(2, np.int64)
    call("advance_search", problem, needs, search, below, max_expansions, found)
    status, path = found.tolist()
    return status, path


class Search(NamedTuple):
    """The memory of a search from call to call. A state is the number of a downset, a path the number of an order."""

    words: NDArray[np.uint64]  # state -> bits of the ops that have run
    live: IntArray  # state -> live bytes
    lowest_peak: IntArray  # state -> lowest peak of the paths to it; -1 once it was expanded
    node: IntArray  # state -> path that led to it
    parent: IntArray  # path -> path before its last op
    op: IntArray  # path -> its last op
    table: IntArray  # hash table with open addressing: state + 1, or 0 for a free slot
    stack: IntArray
    heap_key: IntArray
    heap_state: IntArray
    tally: IntArray


def new_search(num_ops: int, max_states: int) -> Search:
    """Return the containers of a search that remembers at most `max_states` downsets."""
    words = (num_ops + 63) // 64
    slots = 1 << int(max_states * 2).bit_length()
    frontier = max_states * 2 + num_ops + 1

    def integers(length: int) -> IntArray:
        return np.zeros(length, dtype=np.int64)

    return Search(
        np.zeros((max_states + num_ops, words), dtype=np.uint64),
        integers(max_states + num_ops),
        integers(max_states + num_ops),
        integers(max_states + num_ops),
        integers(max_states * 4),
        integers(max_states * 4),
        integers(slots),
        integers(frontier),
        integers(frontier),
        integers(frontier),
        integers(8),
    )


def ancestors(problem: Problem, order: IntArray) -> NDArray[np.bool_]:
    """Return a matrix whose row v marks v and every op that must run before v; `order` is any valid order."""
    before = np.zeros((len(order), len(order)), np.bool_)
    call("ancestors_of_ops", problem, np.ascontiguousarray(order), before)
    return before


class Needs(NamedTuple):
    """The bytes that must be live while each op runs.

    A buffer *exists* at an op if the op, or an op that must run before it, uses the buffer, or if it is live at the
    start. It is *needed* if the op, or an op that must run after it, uses the buffer, or if it is live at the end.

    Attributes:
        certain: for every op the bytes that are live in every order: its workspace, and the buffers that exist and are
            needed.
        pending: a matrix buffer x op, with the bytes of buffers that are needed, but may be made after the op. They
            count once the buffer is live.
    """

    certain: IntArray
    pending: IntArray


def needs_matrix(problem: Problem, before: NDArray[np.bool_]) -> Needs:
    """Return the needs of every op, from the matrix of `ancestors`."""
    shape = (len(problem.nbytes), problem.num_ops)
    needs = Needs(np.empty(problem.num_ops, np.int64), np.zeros(shape, np.int64))
    call("needs_of_ops", problem, before, needs)
    return needs


def is_cpsat_available() -> bool:
    """Return True if OR-tools is installed."""
    return find_spec("ortools") is not None


def cpsat_order(
    problem: Problem, hint: IntArray, lower_bound_bytes: int, *, effort: float, seed: int, clock: Clock
) -> tuple[IntArray | None, int]:
    """Return a better order, or a bound that may prove that no order is better.

    Args:
        problem: the ordering problem.
        hint: the best order known.
        lower_bound_bytes: a bound that holds for every order.
        effort: deterministic time of the solver (about a second each).
        seed: seed of the solver.
        clock: when to stop.

    Returns:
        The best order, or None if the solver found no order; and the proven lower bound (bytes).
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    known = int(peak_of(problem, hint))
    starts = _build(model, problem, hint, lower_bound_bytes, known)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # more than one would make the order depend on the machine's load
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = max(0.01, clock.left_s())
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, lower_bound_bytes
    order = np.argsort([solver.value(start) for start in starts], kind="stable").astype(np.int64)
    if status == cp_model.OPTIMAL:
        bound = int(peak_of(problem, order))
    else:
        bound = int(solver.best_objective_bound) + problem.always  # the model leaves out what is always live
    return order, max(lower_bound_bytes, bound)


def _build(model: CpModel, problem: Problem, hint: IntArray, lowest: int, known: int) -> list[IntVar]:
    """Add the problem to the model; return the position of each op, as variables of the model.

    Each buffer is an interval from its first to its last user. The peak, which the solver minimizes, limits the sum of
    all intervals.
    """
    num_ops = problem.num_ops
    before = np.asarray(ancestors(problem, breadth_first(problem)))
    earliest, latest = before.sum(axis=1) - 1, num_ops - before.sum(axis=0)
    starts = [model.new_int_var(int(earliest[op]), int(latest[op]), f"s{op}") for op in range(num_ops)]
    model.add_all_different(starts)
    for op in range(num_ops):
        for above in problem.pred[problem.pred_ptr[op] : problem.pred_ptr[op + 1]].tolist():
            model.add(starts[above] < starts[op])
    for position, op in enumerate(hint.tolist()):
        model.add_hint(starts[op], position)
    peak = model.new_int_var(lowest - problem.always, known - problem.always, "peak")
    intervals, demands = [], []
    for op in np.flatnonzero(problem.workspace).tolist():
        intervals.append(model.new_fixed_size_interval_var(starts[op], 1, f"w{op}"))
        demands.append(int(problem.workspace[op]))
    for buffer in range(len(problem.nbytes)):
        intervals.append(_lifetime(model, problem, starts, buffer))
        demands.append(int(problem.nbytes[buffer]))
    model.add_cumulative(intervals, demands, peak)
    model.minimize(peak)
    return starts


def _lifetime(model: CpModel, problem: Problem, starts: list[IntVar], buffer: int) -> IntervalVar:
    """Return the interval from the first to the last user of a buffer."""
    num_ops = problem.num_ops
    users = [
        starts[op] for op in problem.user[problem.user_ptr[buffer] : problem.user_ptr[buffer + 1]].tolist()
    ]
    # fixed where the buffer is live before the first op or after the last one
    birth = model.new_int_var(0, 0 if problem.at_start[buffer] else num_ops, f"b{buffer}")
    death = model.new_int_var(num_ops if problem.at_end[buffer] else 0, num_ops, f"d{buffer}")
    if not problem.at_start[buffer]:
        model.add_min_equality(birth, users)
    if not problem.at_end[buffer]:
        model.add_max_equality(death, [user + 1 for user in users])
    size = model.new_int_var(1, num_ops + 1, f"n{buffer}")
    return model.new_interval_var(birth, size, death, f"i{buffer}")
