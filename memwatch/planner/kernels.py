"""Compile every kernel of the planner, once for this machine."""

from __future__ import annotations


def compile_kernels() -> None:
    """Compile the planner's kernels, or load them from numba's cache on disk.

    A cold cache takes about a minute. `memwatch build` calls this so that the first plan does not have to.
    """
    from memwatch.planner.order import warm
    from memwatch.planner.recompute import search

    search.warm_up()
    warm.warm_up()
