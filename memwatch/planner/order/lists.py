"""The cheap candidates: program order, list schedules and beam searches.

Some are made for the program and for its mirror image, in which every order runs backwards with the same peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.order.problem import mirrored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem

_LONGEST_RUN = 24
_BEAM_WIDTHS = (4, 16)  # both are tried, because a wider beam is not always better


def inductor_orders(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the three methods of torch._inductor.memory: lpmf, bfs, dfs."""
    from memwatch.planner.order import _lists as kernel

    yield "bfs", kernel.breadth_first(problem)
    yield "dfs", kernel.depth_first(problem, *_by_size(problem))
    yield "lpmf", kernel.least_growth(problem, 1, _widest(problem))


def list_orders(problem: Problem, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of the list schedules, cheapest first, until the time is up."""
    from memwatch.planner.order import _lists as kernel

    backwards = mirrored(problem)
    yield "program", np.arange(problem.num_ops)
    yield from inductor_orders(problem)
    if not clock.is_over():
        yield "lookahead", kernel.least_growth(problem, _LONGEST_RUN, _widest(problem))
    if not clock.is_over():
        order = kernel.least_growth(backwards, _LONGEST_RUN, _widest(problem))
        yield "mirrored-lookahead", order[::-1].copy()


def beam_orders(problem: Problem, seed: int, clock: Clock) -> Iterator[tuple[str, IntArray]]:
    """Yield (name, order) of beam searches of several widths, forwards and backwards, until the time is up."""
    from memwatch.planner.order._beam import beam_search

    bits = np.random.default_rng(seed).integers(0, 2**64, size=problem.num_ops, dtype=np.uint64)
    backwards = mirrored(problem)
    for width in _BEAM_WIDTHS:
        if not clock.is_over():
            yield f"beam-{width}", beam_search(problem, width, bits)
        if not clock.is_over():
            yield f"mirrored-beam-{width}", beam_search(backwards, width, bits)[::-1].copy()


def _widest(problem: Problem) -> int:
    """Return how many ready ops a list schedule examines per step; this limit keeps wide programs linear."""
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
