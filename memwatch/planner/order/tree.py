"""Optimal orders of trees, in O(n log n) to O(n^2): hills and valleys (Liu 1987, Monma & Sidney 1979).

Live bytes of an order rise to hills and fall to valleys. An optimal order of a tree runs each subtree from valley to
valley, and merges the pieces of several subtrees by a fixed priority.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.planner.order.anneal import new_walk
from memwatch.planner.order.lists import breadth_first
from memwatch.planner.order.problem import mirror_image

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


@dataclass(frozen=True, slots=True)
class _Segment:
    """A run of ops, from valley to valley, that an optimal order need not interrupt.

    `hill` is the most bytes that it needs, and `net` the bytes that it leaves alive. Both are relative to the live
    bytes before it. `ops` is an op or a pair of such values, so that joining takes no time.
    """

    hill: int
    net: int
    ops: Any

    @property
    def priority(self) -> tuple[int, int]:
        """Sort key: segments that lower live bytes, lowest hill first; then others, largest hill minus net first."""
        return (0, self.hill) if self.net <= 0 else (1, self.net - self.hill)

    def join(self, other: _Segment) -> _Segment:
        """Return this segment and then the other one, as one segment."""
        hill = max(self.hill, self.net + other.hill)
        return _Segment(hill, self.net + other.net, (self.ops, other.ops))


def tree_order(problem: Problem) -> IntArray | None:
    """Return an optimal order of a forest; None for other programs.

    In an in-forest every op has at most one successor, in an out-forest at most one predecessor. Every buffer
    must have the same first and last user in every order. Under these conditions, merging the segments of
    subtrees by priority is optimal (the adjacent interchange property).
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
    """Append a segment, joined with those before it whose priority is higher than its own."""
    while segments and segments[-1].priority > last.priority:
        last = segments.pop().join(last)
    segments.append(last)


def _same_users_always(problem: Problem, forward: IntArray, parent: IntArray) -> bool:
    """Return True if the users of every buffer are on one path to the root."""
    place = np.empty(problem.num_ops, dtype=np.int64)
    place[forward] = np.arange(problem.num_ops)
    for buffer in np.flatnonzero(np.diff(problem.user_ptr) > 1).tolist():
        users = problem.user[problem.user_ptr[buffer] : problem.user_ptr[buffer + 1]]
        users = users[np.argsort(place[users])]
        for above, below in zip(users[1:].tolist(), users[:-1].tolist(), strict=True):
            op = below
            while op != above and op >= 0 and place[op] < place[above]:
                op = int(parent[op])
            if op != above:
                return False
    return True


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
