"""The cheap candidates: program order and list schedules, of the program and of its mirror image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.order.problem import mirrored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.clock import Clock
    from memwatch.planner.order.problem import Problem

_LONGEST_RUN = 24


def inductor_orders(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    """Yield the three orders of torch._inductor.memory: lpmf, bfs, dfs."""
    from memwatch.planner.order import _lists as kernel

    yield "bfs", kernel.breadth_first(problem)
    yield "dfs", kernel.depth_first(problem, *_by_size(problem))
    yield "lpmf", kernel.least_growth(problem, 1)


def list_orders(problem: Problem, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield the candidates, cheapest first, until the time is up."""
    from memwatch.planner.order import _lists as kernel

    backwards = mirrored(problem)
    yield "program", np.arange(problem.num_ops)
    yield from inductor_orders(problem)
    for longest in (_LONGEST_RUN, 4):
        if not clock.is_over():
            yield f"lookahead-{longest}", kernel.least_growth(problem, longest)
        if not clock.is_over():
            yield f"mirrored-lookahead-{longest}", kernel.least_growth(backwards, longest)[::-1].copy()


def _by_size(problem: Problem) -> tuple[IntArray, IntArray]:
    """Ops with the smallest first, and every op's predecessors with the largest first."""
    owner = np.repeat(np.arange(problem.num_ops), np.diff(problem.touch_ptr))
    size = problem.workspace + np.bincount(
        owner, weights=problem.nbytes[problem.touch], minlength=problem.num_ops
    ).astype(np.int64)
    waits = np.repeat(np.arange(problem.num_ops), np.diff(problem.pred_ptr))
    below = problem.pred[np.lexsort((-size[problem.pred], waits))]
    return np.argsort(size, kind="stable"), below
