"""Compute lower bounds: peaks that no plan can go below.

There are four bounds (bytes):
- the working set of the largest op;
- the buffers that are alive at the end;
- the buffers that must be live together in every order without recompute;
- for plans with recompute: the working set of the last of several large ops, and the buffers that must wait meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call, is_available
from memwatch.planner.order.lists import breadth_first
from memwatch.planner.order.problem import Problem, order_problem

if TYPE_CHECKING:
    from typing import Any

    from memwatch.planner.graph import Csr, Graph, IntArray


# ops; in larger programs the must-live bound examines only so many ops, the ones with the largest working sets; a guess
_MOST_OPS_BOUNDED = 8_192


def working_sets(graph: Graph) -> IntArray:
    """Return the bytes that each op needs in every plan: its buffers, its workspace, and buffers that are never freed.

    Recompute and offload cannot lower them.
    """
    stays = (graph.buffer_producer < 0) & ~graph.buffer_freeable
    nbytes = np.where(stays, 0, graph.buffer_nbytes)
    return (
        graph.touches.sum_per_row(nbytes) + graph.op_workspace_bytes + int(graph.buffer_nbytes[stays].sum())
    )


def working_set_bound(graph: Graph) -> int:
    """Return the largest working set (bytes), or the live bytes before the first op, if they are more."""
    return max(graph.baseline_bytes, int(working_sets(graph).max(initial=0)))


def pinned_bound(graph: Graph) -> int:
    """Return the live bytes after the last op: kept buffers, and buffers that may not be freed."""
    return int(graph.buffer_nbytes[graph.buffer_pinned | ~graph.buffer_freeable].sum())


def must_live_bound(graph: Graph) -> int:
    """Return the most bytes that must be live while some op runs, in every order without recompute."""
    return max(graph.baseline_bytes, must_live_bytes(order_problem(graph)))


def lower_bound(graph: Graph, recompute: bool, offload: bool = False) -> int:
    """Return the highest of the bounds that hold (bytes). The must-live bound needs the kernels.

    Args:
        graph: the program.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back. If they may, no buffer has to wait in memory, so only the
            first two bounds hold.
    """
    bound = max(working_set_bound(graph), pinned_bound(graph))
    if offload:
        return bound
    if recompute:
        return max(bound, last_large_bound(graph, working_sets(graph)))
    return max(bound, must_live_bound(graph)) if is_available() else bound


def must_live_bytes(problem: Problem) -> int:
    """Return the must-live bound of an ordering problem (bytes)."""
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
    )


def must_live(problem: Problem, order: IntArray, chosen: IntArray) -> IntArray:
    """Return the bytes that must be live while each chosen op runs, when nothing is computed twice.

    A buffer must be live at op v under two conditions. First, it exists: v or an op that must run before v uses it, or
    it is live at the start. Second, it is needed: v or an op that must run after v uses it, or it is live at the end.

    Args:
        problem: the ordering problem.
        order: any valid order.
        chosen: at most 64 ops.

    Returns:
        Bytes for every chosen op, its workspace included.
    """
    total = np.empty(len(chosen), np.int64)
    call("must_live_bytes", problem, order, np.ascontiguousarray(chosen), total)
    return total


_MOST_SETS = 8  # sets of large ops that are tried; a guess
_MOST_WORK = 40_000  # edges of all cuts together: about a second; a guess
_SOURCE, _SINK = -1, -2  # the nodes of the network where the flow begins and ends


class _Slots(NamedTuple):
    """Every version of every buffer is a slot. `maker` is the op that makes it, -1 for an external buffer."""

    first: IntArray
    buffer: IntArray
    maker: IntArray


def last_large_bound(graph: Graph, working_sets: IntArray) -> int:
    """Return a bound (bytes) on the peak of all plans without moves, also with recompute; 0 for large programs.

    Choose any set of large ops. In every plan one of them runs last. While it runs, its inputs and outputs exist.
    Enough other buffers exist too: after this op, the ops outside the set must be able to compute all buffers that the
    program keeps at the end. The fewest bytes from which they can do so are a minimum cut of the graph. The bound is
    the smallest sum of working set and cut among the large ops.

    The cut may be too low, but never too high, because it lets every op run again: also an op with an effect, or an op
    whose inputs the program overwrites.

    Args:
        graph: the program.
        working_sets: bytes that each op needs while it runs.
    """
    best = 0
    slots = _slots(graph)
    levels = np.unique(working_sets)[::-1]
    levels = levels[2 * levels >= levels[0]][:_MOST_SETS] if len(levels) else levels
    edges = len(slots.buffer) + len(graph.reads.indices) + len(graph.writes.indices)
    left = _MOST_WORK
    for level in levels.tolist():
        large = np.flatnonzero(working_sets >= level)
        most = left // max(edges, 1)
        if most < 1:
            break
        if (
            len(large) > most
        ):  # any set gives a bound; a set that is spread over the program gives a good bound
            large = large[np.linspace(0, len(large) - 1, most).astype(np.int64)]
        left -= len(large) * edges
        best = max(best, _cut_bound(graph, slots, large, working_sets, best))
    return best


def _cut_bound(graph: Graph, slots: _Slots, large: IntArray, working_sets: IntArray, best: int) -> int:
    from networkx import maximum_flow_value
    from networkx.algorithms.flow import boykov_kolmogorov  # several times as fast here as the default

    network = _network(graph, slots, large)
    lowest = None
    for op in large.tolist():
        there = set(graph.touches.row(op).tolist())
        for slot, buffer in enumerate(slots.buffer.tolist()):
            if network.has_edge((slot, 0), (slot, 1)):
                nbytes = 0 if buffer in there else int(graph.buffer_nbytes[buffer])
                network.edges[(slot, 0), (slot, 1)]["capacity"] = nbytes
        flow = maximum_flow_value(network, _SOURCE, _SINK, flow_func=boykov_kolmogorov)
        found = int(working_sets[op]) + int(flow)
        lowest = found if lowest is None else min(lowest, found)
        if lowest <= best:
            break
    return lowest or 0


def _slots(graph: Graph) -> _Slots:
    versions = graph.final_version + 1
    first = np.concatenate(([0], np.cumsum(versions)))
    maker = np.full(int(first[-1]), -1, dtype=np.int64)
    maker[first[graph.makes.indices]] = graph.makes.row_ids()
    maker[first[graph.writes.indices] + graph.write_version] = graph.writes.row_ids()
    return _Slots(first, np.repeat(np.arange(graph.num_buffers), versions), maker)


def _network(graph: Graph, slots: _Slots, large: IntArray) -> Any:
    """Return the flow network: from external buffers and buffers of large ops, through other ops, to kept buffers.

    Each slot is an edge from ``(slot, 0)`` to ``(slot, 1)``. Its capacity will be the bytes of the buffer. All other
    edges have no capacity, which networkx reads as infinite.
    """
    from networkx import DiGraph

    network: Any = DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))
    stays = (graph.buffer_producer < 0) & ~graph.buffer_freeable  # always there
    is_large = np.zeros(graph.num_ops + 1, dtype=bool)
    is_large[large] = True
    for slot, (buffer, maker) in enumerate(zip(slots.buffer.tolist(), slots.maker.tolist(), strict=True)):
        if stays[buffer]:
            continue
        network.add_edge((slot, 0), (slot, 1), capacity=0)
        network.add_edge(_SOURCE if maker < 0 or is_large[maker] else ("op", maker), (slot, 0))
    for used, version in ((graph.reads, graph.read_version), (graph.writes, graph.write_version - 1)):
        for op, slot in _uses(slots, used, version):
            if not is_large[op] and not stays[slots.buffer[slot]]:
                network.add_edge((slot, 1), ("op", op))
    for buffer in np.flatnonzero(graph.buffer_pinned & ~stays).tolist():
        network.add_edge((int(slots.first[buffer + 1]) - 1, 1), _SINK)
    return network


def _uses(slots: _Slots, used: Csr, version: IntArray) -> list[tuple[int, int]]:
    return list(zip(used.row_ids().tolist(), (slots.first[used.indices] + version).tolist(), strict=True))
