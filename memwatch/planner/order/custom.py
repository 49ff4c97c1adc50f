"""Orders computed by a function of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.planner.errors import OrderError
from memwatch.planner.order.bounds import lower_bound
from memwatch.planner.order.portfolio import OrderResult
from memwatch.planner.peak import simulate
from memwatch.planner.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.graph import Graph


def custom_order(graph: Graph, order: Callable[[Graph], Sequence[int]]) -> OrderResult:
    """Return the order that a function computes for a graph, checked and with its peak.

    Raises:
        OrderError: the result is not an order of all ops, each once, that computes the program.
    """
    name = getattr(order, "__name__", repr(order))
    returned = order(graph)
    try:
        indices = [int(index) for index in returned]
    except (TypeError, ValueError):
        raise OrderError(f"{name} returned {returned!r}; an order is a sequence of op indices") from None
    if len(indices) > graph.num_ops:
        twice = next(index for position, index in enumerate(indices) if index in indices[:position])
        raise OrderError(f"{name} returned op {twice} twice; an order names every op once")
    schedule = Schedule.from_order(indices)
    try:
        peak = simulate(graph, schedule).peak_bytes
    except OrderError as error:
        raise OrderError(f"{name} returned an order that is not valid: {error}") from error
    bound = lower_bound(graph, recompute=False)
    return OrderResult(schedule.index, peak, bound, peak == bound, name)
