"""Kernels: the buffers that must be live while an op runs, whatever the order, without recompute."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


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

    `certain` holds for every op the bytes that are live in every order: its workspace, and buffers that are
    touched by it or before it (or live at the start) and by it or after it (or live at the end). `pending` is a
    matrix buffer x op. It holds bytes of buffers that are needed by the op or after it, but may be made after it:
    they count once the buffer is live.
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
