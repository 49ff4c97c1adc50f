"""Find a better order for a schedule with recomputes: turn each step into an op of its own, and reorder these ops."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.graph import Effect, Graph, Name, OpSpec
from memwatch.planner.order.anneal import anneal_order
from memwatch.planner.order.problem import order_problem

if TYPE_CHECKING:
    from memwatch.planner.graph import Csr, IntArray
    from memwatch.planner.request import Clock


def augmented_graph(graph: Graph, tokens: IntArray) -> Graph | None:
    """Return a schedule as a program: every step is an op.

    Args:
        graph: the program.
        tokens: a valid schedule of it.

    Returns:
        The program. It is None for a schedule with moves. It is also None if the schedule makes a mutated buffer again,
        because the version that a later use reads would then depend on the order.
    """
    if len(tokens) and tokens.max() >= graph.num_ops:
        return None
    made = np.bincount(graph.makes.indices[graph.makes.entries(tokens)], minlength=graph.num_buffers)
    if np.any((made > 1) & (graph.final_version > 0)):
        return None
    instance = [
        0
    ] * graph.num_buffers  # how often each buffer was made so far; each time is a buffer of its own
    makes_rows, reads_rows = _rows(graph.makes), _rows(graph.reads)
    once_flags = iter(graph.writes_once.tolist())
    writes_rows = [[(buffer, next(once_flags)) for buffer in row] for row in _rows(graph.writes)]
    computed: set[int] = set()
    specs = []
    for step, op in enumerate(tokens.tolist()):
        reads: list[Name] = [(buffer, instance[buffer]) for buffer in reads_rows[op]]
        writes: list[Name] = [
            (buffer, instance[buffer]) for buffer, once in writes_rows[op] if not (once and op in computed)
        ]
        computed.add(op)
        makes: dict[Name, int] = {}
        for buffer in makes_rows[op]:
            instance[buffer] += 1
            makes[buffer, instance[buffer]] = int(graph.buffer_nbytes[buffer])
        effect = Effect(int(graph.op_effect[op]))
        workspace = int(graph.op_workspace_bytes[op])
        again = bool(graph.op_recomputable[op])
        specs.append(OpSpec(step, reads, makes, float(graph.op_cost[op]), writes, workspace, effect, again))
    external = np.flatnonzero((graph.buffer_producer < 0) & (np.diff(graph.users.indptr) > 0))
    pinned = np.flatnonzero(graph.buffer_pinned & (np.diff(graph.users.indptr) > 0))
    return Graph.build(
        specs,
        keep=[(int(buffer), instance[buffer]) for buffer in pinned],
        external_nbytes={(int(buffer), 0): int(graph.buffer_nbytes[buffer]) for buffer in external},
        freeable_externals=[(int(buffer), 0) for buffer in external if graph.buffer_freeable[buffer]],
    )


def reorder(graph: Graph, tokens: IntArray, seed: int, moves: int, clock: Clock) -> IntArray | None:
    """Return the steps in an order with a lower or the same peak; None if they cannot be reordered."""
    copy = augmented_graph(graph, tokens)
    if copy is None:
        return None
    problem = order_problem(copy)
    order = anneal_order(
        problem, np.arange(problem.num_ops), 0, rounds=4, moves=moves, seed=seed, clock=clock
    )
    return tokens[order]


def _rows(part: Csr) -> list[list[int]]:
    indices, indptr = part.indices.tolist(), part.indptr.tolist()
    return [indices[first:last] for first, last in itertools.pairwise(indptr)]
