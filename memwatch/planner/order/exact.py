"""Exact search for small programs: an optimal order, or a proven lower bound.

A downset is a set of ops that may have run: together with an op, it contains all ops that must run before it. The
live buffers depend on the downset alone, and not on the order of its ops. The search expands downsets, lowest peak
first. Its level is the peak below which every order has been excluded so far, so it is a proven lower bound.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.order.lists import breadth_first
from memwatch.planner.order.problem import effect_of, live_at_start, mark_run, mark_unrun, mirror_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


_EXPANSIONS_PER_CALL = 500  # downsets expanded between two checks of the clock; a guess


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Result of the search.

    Attributes:
        order: an order below the known peak; None if the search found none.
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
    program in the same way). Safe chains of ops run at once. The program and its mirror image are searched
    side by side and share their bound, because one of them may have far fewer downsets.

    Args:
        problem: the ordering problem.
        known_peak_bytes: peak of the best known order. Only lower peaks are searched for.
        lower_bound_bytes: a bound that holds for every order.
        max_states: how many downsets each direction may remember.
        clock: when to stop.
    """
    return _raise_level(problem, known_peak_bytes, lower_bound_bytes, max_states, clock)


def beat_or_prove(problem: Problem, known_peak_bytes: int, max_states: int, clock: Clock) -> SearchResult:
    """Return any order under a known peak, or the proof that no such order exists; otherwise a bound of 0.

    The level is one byte under the known peak from the start. So more chains are safe and fewer downsets are
    expanded than by `search_orders`, which is slower but has a bound when it is cut off.
    """
    found = _raise_level(problem, known_peak_bytes, known_peak_bytes - 1, max_states, clock)
    is_proof = found.order is None and found.lower_bound_bytes >= known_peak_bytes
    return found if is_proof else SearchResult(found.order, 0, found.expansions)


def _raise_level(
    problem: Problem, known_peak_bytes: int, level: int, max_states: int, clock: Clock
) -> SearchResult:
    """Raise the level until an order is found or none can be under the known peak."""
    directions = [_Direction(problem, max_states), _Direction(mirror_image(problem), max_states)]
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
        self._problem = problem
        self._needs = needs_matrix(problem, ancestors(problem, breadth_first(problem)))
        self._search = new_search(problem.num_ops, max_states)
        self._tally = self._search.tally
        empty = np.zeros(self._search.words.shape[1], dtype=np.uint64)
        live = live_at_start(problem)
        start = remember_state(self._search, empty, -1 - find_state(self._search, empty), live)
        self._search.node[start] = -1
        self._search.stack[0] = start
        self._tally[STACKED] = 1
        self.level = max(live, int(self._needs.certain.max()))
        self.order: IntArray | None = None
        self.goes_on = True

    @property
    def expansions(self) -> int:
        """How many downsets were expanded so far."""
        return int(self._tally[EXPANDED])

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


RUNNING, FOUND, EXHAUSTED, FULL = 0, 1, 2, 3


def run_safe_ops(problem: Problem, search: Search, now: Downset, at: tuple[int, int]) -> tuple[int, int, int]:
    """Run all chains of ops that are safe below the level (see `safe_run`).

    Takes (live bytes, path) and returns (number of ops run, live bytes, path).
    """
    live, node = at
    run = np.empty(LONGEST_RUN + 1, np.int64)
    done = 0
    again = True
    while again:
        again = False
        for op in range(len(now.waiting)):
            if now.waiting[op] != 0:
                continue
            length = safe_run(problem, now, op, search.tally[LEVEL] - live, run)
            for index in range(length):
                _, net = effect_of(problem, now.seen, run[index])
                live += net
                run_op(problem, now, run[index])
                now.words[run[index] >> 6] |= np.uint64(1) << np.uint64(run[index] & 63)
                node = new_node(search, node, run[index])
            done += length
            again = again or length > 0
    return done, live, node


def bound_of(problem: Problem, needs: Needs, now: Downset) -> int:
    """Return a peak (bytes) that no order which goes on from this downset can go below."""
    total = needs.certain.copy()
    for buffer in range(len(now.seen)):
        users = problem.user_ptr[buffer + 1] - problem.user_ptr[buffer]
        if 0 < now.seen[buffer] < users or (now.seen[buffer] and problem.at_end[buffer]):
            total += needs.pending[buffer]
    bound = np.int64(0)
    for op in range(len(now.waiting)):
        if now.waiting[op] >= 0:
            bound = max(bound, total[op])
    return int(bound)


def expand(problem: Problem, search: Search, now: Downset, at: tuple[int, int], below: int) -> None:
    """Queue every downset that is one op larger, if its peak is under `below`."""
    live, node = at
    for op in range(len(now.waiting)):
        if now.waiting[op] != 0:
            continue
        rise, net = effect_of(problem, now.seen, op)
        key = max(search.tally[LEVEL], live + rise)
        if key >= below:
            continue
        bit = np.uint64(1) << np.uint64(op & 63)
        now.words[op >> 6] |= bit
        state = find_state(search, now.words)
        if state < 0:
            state = remember_state(search, now.words, -1 - state, live + net)
            search.lowest_peak[state] = key + 1
        now.words[op >> 6] &= ~bit
        if search.lowest_peak[state] == EXPANDED_MARK or search.lowest_peak[state] <= key:
            continue
        search.lowest_peak[state] = key
        search.node[state] = new_node(search, node, op)
        if key <= search.tally[LEVEL]:
            search.stack[search.tally[STACKED]] = state
            search.tally[STACKED] += 1
        else:
            heap_push(search, key, state)


def postpone(search: Search, bound: int, state: int, node: int) -> None:
    """Queue a state for when the level has reached its bound."""
    search.lowest_peak[state] = bound
    search.node[state] = node
    heap_push(search, bound, state)


def next_state(search: Search) -> int:
    """Take the next state from the stack or, with a higher level, from the heap; -1 when there is none."""
    while search.tally[STACKED] or search.tally[HEAPED]:
        if search.tally[STACKED]:
            search.tally[STACKED] -= 1
            state = search.stack[search.tally[STACKED]]
        else:
            search.tally[LEVEL] = max(search.tally[LEVEL], search.heap_key[0])
            state = heap_pop(search)
        if search.lowest_peak[state] != EXPANDED_MARK:
            return int(state)
    return -1


def is_full(search: Search, num_ops: int) -> bool:
    """Return True when one more expansion may exceed the memory of the search."""
    return bool(
        search.tally[STATES] + num_ops >= len(search.live)
        or search.tally[NODES] + 2 * num_ops >= len(search.parent)
        or max(search.tally[STACKED], search.tally[HEAPED]) + num_ops >= len(search.stack)
    )


@with_twin(calls.advance)
def advance(
    problem: Problem, needs: Needs, search: Search, below: int, max_expansions: int
) -> tuple[int, int]:
    """Expand downsets: lowest peak first and, of equal ones, deepest first.

    Args:
        problem: the ordering problem.
        needs: the bytes that must be live at every op.
        search: the state of the search, kept from call to call.
        below: only peaks under this are searched for (bytes).
        max_expansions: how many downsets to expand before returning RUNNING.

    Returns:
        (status, path). FOUND: the path leads to an optimal order. EXHAUSTED: no order has a peak under
        `below`. FULL: the memory of the search is used up. RUNNING: call again.
    """
    num_ops = len(problem.workspace)
    now = Downset(
        np.empty(search.words.shape[1], np.uint64),
        np.empty(len(problem.nbytes), np.int64),
        np.empty(num_ops, np.int64),
    )
    for _ in range(max_expansions):
        if is_full(search, num_ops):
            return FULL, -1
        state = next_state(search)
        if state < 0:
            return EXHAUSTED, -1
        search.lowest_peak[state] = EXPANDED_MARK
        search.tally[EXPANDED] += 1
        now.words[:] = search.words[state]
        left = load_downset(problem, now)
        ran, live, node = run_safe_ops(problem, search, now, (search.live[state], search.node[state]))
        if ran == left:
            return FOUND, node
        if ran:
            state = find_state(search, now.words)
            if state < 0:
                state = remember_state(search, now.words, -1 - state, live)
            elif search.lowest_peak[state] == EXPANDED_MARK:
                continue
        bound = bound_of(problem, needs, now)
        if bound <= search.tally[LEVEL]:
            search.lowest_peak[state] = EXPANDED_MARK
            expand(problem, search, now, (live, node), below)
        elif bound < below:
            postpone(search, bound, state, node)
    return RUNNING, -1


LONGEST_RUN = 16  # ops of one safe run; a guess
_MOST_TRIES = 48  # ops tried per safe run; a limit on the work where chains fork; a guess


class Downset(NamedTuple):
    """One downset, in the form that the search changes op by op."""

    words: NDArray[np.uint64]  # bits of the ops that have run
    seen: IntArray  # buffer -> how many of its users have run
    waiting: IntArray  # op -> how many ops it waits for, -1 once it has run


def run_op(problem: Problem, now: Downset, op: int) -> None:
    """Add an op to the downset; the caller updates `words`."""
    mark_run(problem, now.seen, op)
    now.waiting[op] = -1
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        now.waiting[problem.succ[entry]] -= 1


def unrun_op(problem: Problem, now: Downset, op: int) -> None:
    """Undo `run_op`."""
    mark_unrun(problem, now.seen, op)
    now.waiting[op] = 0
    for entry in range(problem.succ_ptr[op], problem.succ_ptr[op + 1]):
        now.waiting[problem.succ[entry]] += 1


def safe_run(problem: Problem, now: Downset, first: int, room: int, run: IntArray) -> int:
    """Write a safe chain of ops from `first` to `run`: it fits in `room` and leaves no more live bytes than before.

    Running such a chain at once is never worse. Live bytes are submodular in the set of ops that have run. Every
    shorter prefix of the chain leaves more live bytes, so moving the chain forward lowers every later level.

    Returns:
        Length of the chain, 0 when there is none. The downset is unchanged.
    """
    live = np.zeros(LONGEST_RUN + 1, np.int64)
    cursor = np.zeros(LONGEST_RUN + 1, np.int64)
    depth = 0
    tries = 0
    found = 0
    candidate = first
    while True:
        if candidate >= 0 and tries < _MOST_TRIES:
            tries += 1
            rise, net = effect_of(problem, now.seen, candidate)
            if live[depth] + rise <= room:
                run[depth] = candidate
                live[depth + 1] = live[depth] + net
                run_op(problem, now, candidate)
                depth += 1
                cursor[depth] = problem.succ_ptr[candidate]
                if live[depth] <= 0:
                    found = depth
                    break
        if depth == 0:
            break
        candidate = -1
        if depth < LONGEST_RUN and tries < _MOST_TRIES:
            while candidate < 0 and cursor[depth] < problem.succ_ptr[run[depth - 1] + 1]:
                after = problem.succ[cursor[depth]]
                cursor[depth] += 1
                if now.waiting[after] == 0:
                    candidate = after
        if candidate < 0:
            depth -= 1
            unrun_op(problem, now, run[depth])
            if depth == 0:
                break
    while depth:
        depth -= 1
        unrun_op(problem, now, run[depth])
    return found


def load_downset(problem: Problem, now: Downset) -> int:
    """Compute the rest of a downset from its words; return how many ops have not run."""
    now.seen[:] = 0
    left = 0
    for op in range(len(now.waiting)):
        now.waiting[op] = problem.pred_ptr[op + 1] - problem.pred_ptr[op]
    for op in range(len(now.waiting)):
        if now.words[op >> 6] >> np.uint64(op & 63) & np.uint64(1):
            run_op(problem, now, op)
        else:
            left += 1
    return left


# slots of Search.tally
STATES, NODES, STACKED, HEAPED, LEVEL, EXPANDED = 0, 1, 2, 3, 4, 5
EXPANDED_MARK = -1  # in place of a peak: the state was expanded
_MASK = (1 << 64) - 1  # 64 bits


class Search(NamedTuple):
    """Everything that the search keeps from call to call. A state is a downset with a number."""

    words: NDArray[np.uint64]  # state -> bits of the ops that have run
    live: IntArray  # state -> live bytes
    lowest_peak: IntArray  # state -> lowest peak on a way to it; EXPANDED_MARK once it was expanded
    node: IntArray  # state -> path that led to it
    parent: IntArray  # path -> path before its last op
    op: IntArray  # path -> its last op
    table: IntArray  # hash table with open addressing: state + 1, or 0 for a free slot
    stack: IntArray
    heap_key: IntArray
    heap_state: IntArray
    tally: IntArray


def new_search(num_ops: int, max_states: int) -> Search:
    """Return the containers of a search that may remember so many downsets."""
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


def find_state(search: Search, words: NDArray[np.uint64]) -> int:
    """Return the state of a downset or, if it is new, -1 - slot with its slot in the table."""
    mixed = 1469598103934665603
    for word in words.tolist():
        mixed = ((mixed ^ word) * 0x9E3779B97F4A7C15) & _MASK
        mixed ^= mixed >> 29
    mask = len(search.table) - 1
    slot = mixed & mask
    while search.table[slot]:
        state = search.table[slot] - 1
        same = True
        for index in range(len(words)):
            same &= search.words[state, index] == words[index]
        if same:
            return int(state)
        slot = (slot + 1) & mask
    return -1 - slot


def remember_state(search: Search, words: NDArray[np.uint64], slot: int, live: int) -> int:
    """Add a new downset and return its state number."""
    state = search.tally[STATES]
    search.tally[STATES] += 1
    for index in range(len(words)):
        search.words[state, index] = words[index]
    search.live[state] = live
    search.table[slot] = state + 1
    return int(state)


def new_node(search: Search, parent: int, op: int) -> int:
    """Return a new path: another one and an op more."""
    node = search.tally[NODES]
    search.tally[NODES] += 1
    search.parent[node] = parent
    search.op[node] = op
    return int(node)


def heap_push(search: Search, key: int, state: int) -> None:
    """Queue a state until the level has risen to `key`."""
    hole = search.tally[HEAPED]
    search.tally[HEAPED] += 1
    while hole:
        above = (hole - 1) // 2
        if search.heap_key[above] <= key:
            break
        search.heap_key[hole] = search.heap_key[above]
        search.heap_state[hole] = search.heap_state[above]
        hole = above
    search.heap_key[hole], search.heap_state[hole] = key, state


def heap_pop(search: Search) -> int:
    """Remove and return the state with the lowest key."""
    result = search.heap_state[0]
    search.tally[HEAPED] -= 1
    size = search.tally[HEAPED]
    key, state = search.heap_key[size], search.heap_state[size]
    hole = 0
    while 2 * hole + 1 < size:
        below = 2 * hole + 1
        if below + 1 < size and search.heap_key[below + 1] < search.heap_key[below]:
            below += 1
        if search.heap_key[below] >= key:
            break
        search.heap_key[hole] = search.heap_key[below]
        search.heap_state[hole] = search.heap_state[below]
        hole = below
    search.heap_key[hole], search.heap_state[hole] = key, state
    return int(result)


@with_twin(calls.ancestors)
def ancestors(problem: Problem, order: IntArray) -> NDArray[np.bool_]:
    """Return a matrix whose row v marks v and every op that must run before v; `order` is any valid order."""
    num_ops = len(order)
    before = np.zeros((num_ops, num_ops), np.bool_)
    for op in order:
        before[op, op] = True
        for entry in range(problem.pred_ptr[op], problem.pred_ptr[op + 1]):
            before[op] |= before[problem.pred[entry]]
    return before


class Needs(NamedTuple):
    """The bytes that must be live while each op runs.

    `certain` has for every op the bytes that are live in every order: its workspace, and the buffers that exist by
    then and are needed still. A buffer exists by then if the op or an op before it uses the buffer, or if it is live
    at the start. It is needed still if the op or an op after it uses the buffer, or if it is live at the end.
    `pending` is a matrix buffer x op. It has the bytes of buffers that are needed still, but may be made after the
    op. They count once the buffer is live.
    """

    certain: IntArray
    pending: IntArray


@with_twin(partial(calls.needs_matrix, Needs))
def needs_matrix(problem: Problem, before: NDArray[np.bool_]) -> Needs:
    """Return the needs of every op, from the matrix of `ancestors`."""
    num_ops = len(problem.workspace)
    certain = problem.workspace + problem.always
    pending = np.zeros((len(problem.nbytes), num_ops), np.int64)
    for buffer in range(len(problem.nbytes)):
        users = problem.user[problem.user_ptr[buffer] : problem.user_ptr[buffer + 1]]
        for op in range(num_ops):
            born = problem.at_start[buffer] == 1
            needed = problem.at_end[buffer] == 1
            for user in users:
                born = born or before[op, user]
                needed = needed or before[user, op]
            if needed and born:
                certain[op] += problem.nbytes[buffer]
            elif needed:
                pending[buffer, op] = problem.nbytes[buffer]
    return Needs(certain, pending)
