"""Find orders cheaply: program order, list schedules, beam searches, and optimal orders of trees.

Some methods also run on the mirror image of the program. Its orders are the orders of the program read backwards, and
they have the same peaks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.planner.native.library import call
from memwatch.planner.order.anneal import new_walk
from memwatch.planner.order.problem import mirror_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.graph import IntArray
    from memwatch.planner.order.problem import Problem
    from memwatch.planner.request import Clock

_LONGEST_RUN = 24  # ops that the list schedule looks ahead along a chain; a guess
# downsets kept for each number of ops; both are tried, because a wider beam is not always better; a guess
_BEAM_WIDTHS = (4, 16)


def inductor_orders(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the three methods of torch._inductor.memory: lpmf, bfs, dfs."""
    yield "bfs", breadth_first(problem)
    yield "dfs", depth_first(problem, *_by_size(problem))
    yield "lpmf", least_growth(problem, 1, _widest(problem))


def list_orders(problem: Problem, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the list schedules, cheapest first, until the time is up."""
    backwards = mirror_image(problem)
    yield "program", np.arange(problem.num_ops)
    yield from inductor_orders(problem)
    if not clock.is_over():
        yield "lookahead", least_growth(problem, _LONGEST_RUN, _widest(problem))
    if not clock.is_over():
        order = least_growth(backwards, _LONGEST_RUN, _widest(problem))
        yield "mirrored-lookahead", order[::-1].copy()


def beam_orders(problem: Problem, seed: int, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of beam searches of several widths, forwards and backwards, until the time is up."""
    bits = np.random.default_rng(seed).integers(0, 2**64, size=problem.num_ops, dtype=np.uint64)
    backwards = mirror_image(problem)
    for width in _BEAM_WIDTHS:
        if not clock.is_over():
            yield f"beam-{width}", beam_search(problem, width, bits)
        if not clock.is_over():
            yield f"mirrored-beam-{width}", beam_search(backwards, width, bits)[::-1].copy()


def _widest(problem: Problem) -> int:
    """Return how many ready ops a list schedule examines per step. The limit keeps its time linear in the ops.

    The three numbers are guesses.
    """
    return max(32, min(256, 4_000_000 // max(1, problem.num_ops)))


def _by_size(problem: Problem) -> tuple[IntArray, IntArray]:
    """Return the ops, smallest first, and the predecessors of every op, largest first."""
    owner = np.repeat(np.arange(problem.num_ops), np.diff(problem.touch_ptr))
    size = problem.workspace + np.bincount(
        owner, weights=problem.nbytes[problem.touch], minlength=problem.num_ops
    ).astype(np.int64)
    waits = np.repeat(np.arange(problem.num_ops), np.diff(problem.pred_ptr))
    below = problem.pred[np.lexsort((-size[problem.pred], waits))]
    return np.argsort(size, kind="stable"), below


def breadth_first(problem: Problem) -> IntArray:
    """Return the ops in the order in which they become ready. An op is ready once all its predecessors have run."""
    order = np.empty(problem.num_ops, np.int64)
    call("breadth_first_order", problem, order)
    return order


def depth_first(problem: Problem, by_size: IntArray, below: IntArray) -> IntArray:
    """Return a post-order from the ends of the program, small ops first, as torch._inductor.memory does.

    Args:
        problem: the ordering problem.
        by_size: ops, the smallest first.
        below: `problem.pred` with every row sorted, the largest op first.
    """
    order = np.empty(problem.num_ops, np.int64)
    call("depth_first_order", problem, by_size, below, order)
    return order


def least_growth(problem: Problem, longest: int, widest: int) -> IntArray:
    """Return an order. Each step runs the ready op that fits under the peak so far and adds the fewest live bytes.

    If no ready op fits, the step runs the one that needs the fewest bytes.

    Args:
        problem: the ordering problem.
        longest: how many ops to look ahead along a chain; 1 is the `lpmf` of torch._inductor.memory.
        widest: how many ready ops to examine per step: the latest ones.
    """
    order = np.empty(problem.num_ops, np.int64)
    call("least_growth_order", problem, longest, widest, order)
    return order


def beam_search(problem: Problem, width: int, bits: NDArray[np.uint64]) -> IntArray:
    """Return the best order of a beam search, which keeps the `width` best downsets of every size.

    `bits` has a random word for each op.
    """
    order = np.empty(problem.num_ops, np.int64)
    call("beam_order", problem, width, bits, order)
    return order


# Optimal orders of trees, in O(n log n) to O(n^2): hills and valleys (Liu 1987, Monma & Sidney 1979).
#
# The live bytes of an order rise to hills and fall to valleys. Cut the order of each subtree at its valleys. An optimal
# order of the tree merges the pieces of several subtrees by a fixed priority.
@dataclass(frozen=True, slots=True)
class _Segment:
    """A run of ops, from valley to valley, that an optimal order need not interrupt.

    Attributes:
        hill: the most bytes that it needs, above the live bytes before it.
        net: the bytes by which it changes the live bytes.
        ops: an op, or a pair of such values, which may be pairs again. With pairs, joining copies nothing.
    """

    hill: int
    net: int
    ops: Any

    @property
    def priority(self) -> tuple[int, int]:
        """Sort key. Segments that do not raise live bytes come first, by their hill, the lowest first.

        The others follow, by hill minus net, the largest first.
        """
        return (0, self.hill) if self.net <= 0 else (1, self.net - self.hill)

    def join(self, other: _Segment) -> _Segment:
        """Return this segment and then the other one, as one segment."""
        hill = max(self.hill, self.net + other.hill)
        return _Segment(hill, self.net + other.net, (self.ops, other.ops))


def tree_order(problem: Problem) -> IntArray | None:
    """Return an optimal order of a forest; None for other programs.

    In a forest every op has at most one successor (in-forest), or every op has at most one predecessor (out-forest).
    Every buffer must also have the same first and last user in every order. Then merging the segments of subtrees by
    priority is optimal (the adjacent interchange property).
    """
    order = _in_tree_order(problem)
    if order is not None:
        return order
    order = _in_tree_order(mirror_image(problem))
    return None if order is None else order[::-1].copy()


def _in_tree_order(problem: Problem) -> IntArray | None:
    if np.any(np.diff(problem.succ_ptr) > 1):
        return None
    forward = breadth_first(problem)
    parent = np.full(problem.num_ops, -1, dtype=np.int64)
    parent[np.diff(problem.succ_ptr) == 1] = problem.succ
    if not _same_users_always(problem, forward, parent):
        return None
    walk = new_walk(problem, forward)  # rise and net of an op are the same in every order
    waiting: dict[int, list[list[_Segment]]] = {}
    for op in forward.tolist():
        children = waiting.pop(op, [])
        segments = children[0] if len(children) == 1 else list(heapq.merge(*children, key=_priority))
        _append(segments, _Segment(int(walk.rise[op]), int(walk.net[op]), op))
        waiting.setdefault(int(parent[op]), []).append(segments)
    ropes = [segment.ops for segment in heapq.merge(*waiting.pop(-1, ()), key=_priority)]
    return np.array(_flatten(ropes), dtype=np.int64)


def _priority(segment: _Segment) -> tuple[int, int]:
    return segment.priority


def _append(segments: list[_Segment], last: _Segment) -> None:
    """Append a segment. Join it with the segments before it whose sort key is larger: it must run after them."""
    while segments and segments[-1].priority > last.priority:
        last = segments.pop().join(last)
    segments.append(last)


def _same_users_always(problem: Problem, forward: IntArray, parent: IntArray) -> bool:
    """Return True if the users of every buffer are on one path to the root.

    Each op has an interval of numbers that contains the intervals of all ops below it. So one comparison decides
    whether an op is above another one.
    """
    below = np.ones(problem.num_ops, dtype=np.int64)  # ops of the subtree
    for op in forward.tolist():
        if parent[op] >= 0:
            below[parent[op]] += below[op]
    begin = np.empty(problem.num_ops, dtype=np.int64)
    free = np.empty(problem.num_ops, dtype=np.int64)  # the first number that no op below has yet
    of_next_root = 0
    for op in forward[::-1].tolist():
        if parent[op] >= 0:
            begin[op] = free[parent[op]]
            free[parent[op]] += below[op]
        else:
            begin[op] = of_next_root
            of_next_root += below[op]
        free[op] = begin[op] + 1
    place = np.empty(problem.num_ops, dtype=np.int64)
    place[forward] = np.arange(problem.num_ops)
    buffer = np.repeat(np.arange(len(problem.user_ptr) - 1), np.diff(problem.user_ptr))
    users = problem.user[np.lexsort((place[problem.user], buffer))]
    lower, upper = users[:-1], users[1:]
    is_above = (begin[upper] <= begin[lower]) & (begin[lower] < begin[upper] + below[upper])
    return bool((is_above | (buffer[:-1] != buffer[1:])).all())


def _flatten(ropes: list[Any]) -> list[int]:
    ops: list[int] = []
    stack = ropes[::-1]
    while stack:
        rope = stack.pop()
        if isinstance(rope, tuple):
            stack.extend((rope[1], rope[0]))
        else:
            ops.append(rope)
    return ops
