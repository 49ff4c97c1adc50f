"""The cheap candidates: program order, list schedules and beam searches.

Some are also made for the mirror image of the program. Its orders are the orders of the program read backwards, with
the same peaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.native.calls import call
from memwatch.planner.order.problem import mirror_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


_LONGEST_RUN = 24  # ops that the list schedule looks ahead along a chain; a guess
_BEAM_WIDTHS = (
    4,
    16,
)  # downsets per size; both are tried, because a wider beam is not always better; a guess


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


def breadth_first(problem: Problem) -> IntArray:
    """Return the ops in the order in which they become ready: all their predecessors have run."""
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
    """Return an order. Each step runs the ready op that fits under the present peak and adds the fewest live bytes.

    If no op fits, the step runs the op that needs the fewest bytes.

    Args:
        problem: the ordering problem.
        longest: how many ops to look ahead along a chain; 1 is the `lpmf` of torch._inductor.memory.
        widest: how many ready ops to examine per step, from the last that became ready.
    """
    order = np.empty(problem.num_ops, np.int64)
    call("least_growth_order", problem, longest, widest, order)
    return order


def beam_search(problem: Problem, width: int, bits: NDArray[np.uint64]) -> IntArray:
    """Return the best order found with the `width` best downsets of every size; `bits` holds a random word per op."""
    order = np.empty(problem.num_ops, np.int64)
    call("beam_order", problem, width, bits, order)
    return order
