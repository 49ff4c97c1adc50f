"""The ordering problem: the ops, the buffers that they touch, and precedence. Also the peak of an order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph


class Problem(NamedTuple):
    """The problem as arrays, for the kernels. A buffer is live from the first op that touches it to the last.

    Read backwards, every order is an order of a problem of the same kind, the mirror image (see `mirror_image`).
    Row i of a list is ``list[list_ptr[i]:list_ptr[i + 1]]``.
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
    live = problem.always
    for buffer in range(len(problem.nbytes)):
        if problem.at_start[buffer]:
            live += problem.nbytes[buffer]
    return live


def effect_of(problem: Problem, seen: IntArray, op: int) -> tuple[int, int]:
    """Return (bytes that an op needs in addition to the live bytes, change of the live bytes after it).

    Args:
        problem: the ordering problem.
        seen: how many users of each buffer have run.
        op: a ready op: all its predecessors have run.
    """
    rise = np.int64(0)
    fall = np.int64(0)
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        buffer = problem.touch[entry]
        if seen[buffer] == 0 and not problem.at_start[buffer]:
            rise += problem.nbytes[buffer]
        users = problem.user_ptr[buffer + 1] - problem.user_ptr[buffer]
        if seen[buffer] + 1 == users and not problem.at_end[buffer]:
            fall += problem.nbytes[buffer]
    return rise + problem.workspace[op], rise - fall


def mark_run(problem: Problem, seen: IntArray, op: int) -> None:
    """Count an op as run in `seen`."""
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        seen[problem.touch[entry]] += 1


def mark_unrun(problem: Problem, seen: IntArray, op: int) -> None:
    """Undo `mark_run`."""
    for entry in range(problem.touch_ptr[op], problem.touch_ptr[op + 1]):
        seen[problem.touch[entry]] -= 1


def levels_of(problem: Problem, order: IntArray) -> IntArray:
    """Return the live bytes while each op of the order runs."""
    seen = np.zeros(len(problem.nbytes), np.int64)
    levels = np.empty(len(order), np.int64)
    live = live_at_start(problem)
    for position in range(len(order)):
        rise, net = effect_of(problem, seen, order[position])
        levels[position] = live + rise
        live += net
        mark_run(problem, seen, order[position])
    return levels


@with_twin(calls.peak_of)
def peak_of(problem: Problem, order: IntArray) -> int:
    """Return the peak of an order (bytes)."""
    peak = live_at_start(problem)
    for level in levels_of(problem, order):
        peak = max(peak, level)
    return peak
