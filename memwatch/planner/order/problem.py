"""Define the ordering problem: the ops, the buffers that they touch, and which op must run before which."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.graph import Csr, IntArray
from memwatch.planner.native.library import call

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph


class Problem(NamedTuple):
    """The problem as arrays, for the kernels. A buffer is live from the first op that touches it to the last.

    If you read an order backwards, it is an order of another such problem, the mirror image (see `mirror_image`).
    `touch`, `user`, `pred` and `succ` are lists: row i of a list is ``list[list_ptr[i]:list_ptr[i + 1]]``.
    """

    workspace: IntArray  # bytes an op needs while it runs
    touch_ptr: IntArray  # op -> buffers
    touch: IntArray
    user_ptr: IntArray  # buffer -> ops
    user: IntArray
    nbytes: IntArray
    at_start: IntArray  # 1: live before the first op
    at_end: IntArray  # 1: live after the last op
    pred_ptr: IntArray
    pred: IntArray
    succ_ptr: IntArray
    succ: IntArray
    always: int  # bytes that are live all the time

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.workspace)


def order_problem(graph: Graph) -> Problem:
    """Return the ordering problem of a graph; op indices stay the same."""
    external = graph.buffer_producer < 0
    at_start = external
    at_end = graph.buffer_pinned | ~graph.buffer_freeable
    always = at_start & at_end
    # leave out empty buffers and buffers that are always live, because they do not change which order is best
    matters = ~always & (graph.buffer_nbytes > 0)
    chosen = np.flatnonzero(matters)
    number = np.cumsum(matters) - 1
    entries = matters[graph.touches.indices]
    touches = Csr.from_pairs(
        graph.touches.row_ids()[entries], number[graph.touches.indices[entries]], graph.num_ops
    )
    users = touches.transpose(len(chosen))
    return Problem(
        graph.op_workspace_bytes.copy(),
        touches.indptr.copy(),
        touches.indices.copy(),
        users.indptr.copy(),
        users.indices.copy(),
        graph.buffer_nbytes[chosen],
        at_start[chosen].astype(np.int64),
        at_end[chosen].astype(np.int64),
        graph.preds.indptr.copy(),
        graph.preds.indices.copy(),
        graph.succs.indptr.copy(),
        graph.succs.indices.copy(),
        int(graph.buffer_nbytes[always].sum()),
    )


def mirror_image(problem: Problem) -> Problem:
    """Return the problem whose orders are this one's orders read backwards, with the same peaks."""
    return problem._replace(
        at_start=problem.at_end,
        at_end=problem.at_start,
        pred_ptr=problem.succ_ptr,
        pred=problem.succ,
        succ_ptr=problem.pred_ptr,
        succ=problem.pred,
    )


def live_at_start(problem: Problem) -> int:
    """Return the live bytes before the first op."""
    return problem.always + int(problem.nbytes[problem.at_start == 1].sum())


def peak_of(problem: Problem, order: IntArray) -> int:
    """Return the peak of an order (bytes)."""
    return int(call("peak_of_order", problem, np.ascontiguousarray(order)))
