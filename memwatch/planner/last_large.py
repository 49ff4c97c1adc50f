"""A bound on the peak of plans that recompute: what must wait while the last large op runs.

Choose any set of large ops. In every plan one of them runs last. While it runs, its inputs and outputs are there. So
is everything that the program keeps in the end, or buffers from which the other ops can still compute it. The fewest
bytes from which everything kept can be computed are a minimum cut of the graph. The bound is that of the op for which
working set and cut are smallest. To stay a bound, the cut is generous: it lets every op run again, even one with an
effect or with inputs that the program overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from memwatch.planner.csr import Csr, IntArray
    from memwatch.planner.graph import Graph

_MOST_SETS = 8
_MOST_WORK = 40_000  # edges of all cuts together: about a second
_SOURCE, _SINK = -1, -2


class _Slots(NamedTuple):
    """Every version of every buffer is a slot; `maker` is the op that makes it, -1 for none."""

    first: IntArray
    buffer: IntArray
    maker: IntArray


def last_large_bound(graph: Graph, working_sets: IntArray) -> int:
    """Return a peak (bytes) that no plan without moves goes below, recomputes included; 0 for large programs.

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
        if len(large) > most:  # any set gives a bound; one spread over the program gives a good one
            large = large[np.linspace(0, len(large) - 1, most).astype(np.int64)]
        left -= len(large) * edges
        best = max(best, _bound(graph, slots, large, working_sets, best))
    return best


def _bound(graph: Graph, slots: _Slots, large: IntArray, working_sets: IntArray, best: int) -> int:
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
    """Return the flow network. It leads from what only large ops make, through the other ops, to what is kept."""
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
