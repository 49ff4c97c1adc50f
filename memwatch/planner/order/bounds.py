"""Peaks that no plan can go below: by the needs of one op, by what must wait, by what is kept at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.last_large import last_large_bound
from memwatch.planner.order.problem import Problem, order_problem

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.graph import Graph

_MOST_OPS_BOUNDED = (
    8_192  # of larger programs, the must-live bound examines the ops with the largest working sets
)


def working_sets(graph: Graph) -> IntArray:
    """Return the bytes that each op needs in every plan: its buffers, its workspace, what may never be freed.

    Neither recompute nor offload can lower them.
    """
    stays = (graph.buffer_producer < 0) & ~graph.buffer_freeable
    nbytes = np.where(stays, 0, graph.buffer_nbytes)
    return (
        graph.touches.sum_per_row(nbytes) + graph.op_workspace_bytes + int(graph.buffer_nbytes[stays].sum())
    )


def working_set_bound(graph: Graph) -> int:
    """Return the largest working set (bytes), or what is live before the first op when that is more."""
    return max(graph.baseline_bytes, int(working_sets(graph).max(initial=0)))


def pinned_bound(graph: Graph) -> int:
    """Return what is live after the last op (bytes): kept buffers and those that may not be freed."""
    return int(graph.buffer_nbytes[graph.buffer_pinned | ~graph.buffer_freeable].sum())


def must_live_bound(graph: Graph) -> int:
    """Return the most bytes that must be live while some op runs, in every order without recompute."""
    return max(graph.baseline_bytes, must_live_bytes(order_problem(graph)))


def lower_bound(graph: Graph, recompute: bool, offload: bool = False) -> int:
    """Return the highest of the bounds that hold (bytes).

    Args:
        graph: the program.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back. Then nothing has to wait in memory, so only the
            largest working set and what is kept at the end count.
    """
    bound = max(working_set_bound(graph), pinned_bound(graph))
    if offload:
        return bound
    return max(bound, last_large_bound(graph, working_sets(graph)) if recompute else must_live_bound(graph))


def must_live_bytes(problem: Problem) -> int:
    """Return the must-live bound of an ordering problem (bytes)."""
    from memwatch.planner.order._lists import breadth_first
    from memwatch.planner.order._must_live import must_live

    if not problem.num_ops:
        return problem.always
    order = breadth_first(problem)
    touched = problem.nbytes[problem.touch]
    owner = np.repeat(np.arange(problem.num_ops), np.diff(problem.touch_ptr))
    need = problem.workspace + np.bincount(owner, weights=touched, minlength=problem.num_ops)
    place = np.empty(problem.num_ops, dtype=np.int64)
    place[order] = np.arange(problem.num_ops)
    chosen = np.argsort(-need, kind="stable")[:_MOST_OPS_BOUNDED]
    chosen = chosen[np.argsort(place[chosen])]  # neighbours share ancestors, so they go into the same word
    return max(
        int(must_live(problem, order, chosen[start : start + 64]).max())
        for start in range(0, len(chosen), 64)
    )  # fmt: skip
