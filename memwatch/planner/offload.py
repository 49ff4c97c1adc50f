"""Which buffers may be moved out of memory and back, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.errors import GraphError
from memwatch.planner.schedule import StepKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph
    from memwatch.planner.op import Name
    from memwatch.planner.schedule import Schedule

SMALLEST_MOVE_BYTES = 4096


def default_bandwidth(graph: Graph) -> float:
    """Return a bandwidth (bytes per unit of cost) for graphs whose costs have no unit.

    Moving everything that the program makes, once and one way, then takes as long as the program itself.
    """
    made_bytes = float(graph.buffer_nbytes[graph.buffer_producer >= 0].sum())
    return max(made_bytes, 1.0) / (graph.total_cost or 1.0)


def movable_buffers(graph: Graph, named: Collection[Name] | None = None) -> NDArray[np.bool_]:
    """Return for every buffer whether it may be moved out.

    Small buffers are not worth a move. External buffers that the program may not free stay where they are.

    Args:
        graph: the program.
        named: the buffers that whoever executes the plan can move; None for all.
    """
    leaves = (graph.buffer_producer >= 0) | graph.buffer_freeable
    if named is not None:
        leaves &= np.array([name in named for name in graph.buffer_names], dtype=bool)
    movable: NDArray[np.bool_] = leaves & (graph.buffer_nbytes >= SMALLEST_MOVE_BYTES)
    return movable


def move_costs(graph: Graph, bandwidth: float | None) -> NDArray[np.float64]:
    """Return the price of moving each buffer one way.

    Args:
        graph: the program.
        bandwidth: bytes that are moved in the time of one unit of cost; `default_bandwidth` if None.

    Raises:
        GraphError: the bandwidth is not a positive number.
    """
    if bandwidth is None:
        bandwidth = default_bandwidth(graph)
    if not 0 < bandwidth < float("inf"):
        raise GraphError(
            f"a bandwidth of {bandwidth!r} is impossible; write a number above zero, in bytes per unit of op cost"
        )
    return graph.buffer_nbytes / bandwidth


def moved_bytes(graph: Graph, schedule: Schedule) -> int:
    """Return how many bytes a schedule moves, out and back."""
    return int(graph.buffer_nbytes[schedule.index[schedule.kind != StepKind.COMPUTE]].sum())
