"""The recompute problem as plain arrays, and schedules as lists of tokens, for the kernels.

Ops at the same place of repeated blocks, such as the layers of a network, get the same class. The model also has the
buffers that may be moved out of memory and back, and the price of each move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.graph import Effect, GraphError
from memwatch.planner.peak import Schedule, StepKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.planner.graph import Csr, Graph, IntArray, Name


_ROUNDS = 3  # edges up to which the surroundings of two ops of a class must look alike; a guess


def op_classes(graph: Graph) -> IntArray:
    """Return a class number for each op; ops with similar surroundings have the same number.

    These are Weisfeiler-Leman colours. An op starts with a colour for its cost, its effect and the sizes of
    its buffers; each round adds the colours of the ops before and after it. Identical layers get equal
    numbers, except for the layers at both ends of the network.
    """
    nbytes = graph.buffer_nbytes
    read_sizes = graph.reads.sum_per_row(nbytes)
    made_sizes = graph.makes.sum_per_row(nbytes)
    rows = zip(
        graph.op_cost.tolist(),
        graph.op_effect.tolist(),
        graph.op_workspace_bytes.tolist(),
        read_sizes.tolist(),
        made_sizes.tolist(),
        graph.reads.lengths().tolist(),
        strict=True,
    )
    colours = _number(list(rows))
    for _ in range(_ROUNDS):
        before = _sums(graph.preds, colours)
        after = _sums(graph.succs, colours)
        colours = _number(list(zip(colours.tolist(), before.tolist(), after.tolist(), strict=True)))
    return colours


def _number(keys: list[tuple[object, ...]]) -> IntArray:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _sums(neighbours: Csr, colours: IntArray) -> IntArray:
    """Return sums of a random weight per colour over the neighbours: equal colours give equal sums."""
    weights = np.random.default_rng(0).integers(1, 2**31, size=int(colours.max(initial=0)) + 1)
    return neighbours.sum_per_row(weights[colours])


class Model(NamedTuple):
    """The part of a graph that the kernels need.

    A schedule is a list of tokens. Token t < num_ops computes op t, num_ops + b moves buffer b out, and
    num_ops + num_buffers + b moves it back. Row i of a list is ``list[list_ptr[i]:list_ptr[i + 1]]``.
    """

    num_ops: int
    num_buffers: int
    read_ptr: IntArray
    read: IntArray
    read_version: IntArray
    make_ptr: IntArray
    make: IntArray
    write_ptr: IntArray
    write: IntArray
    write_version: IntArray
    once: IntArray  # 1: only the first computation of the op makes this write
    writer_ptr: IntArray  # buffer -> ops that mutate it, in version order
    writer: IntArray
    producer: IntArray
    nbytes: IntArray
    workspace: IntArray
    cost: NDArray[np.float64]
    again: IntArray  # 1: the op may be computed again
    stays: IntArray  # 1: the first runs of all ops with this mark keep their order
    movable: IntArray  # 1: the buffer may be moved out
    move_cost: NDArray[np.float64]  # price of moving a buffer one way
    kind: IntArray  # op -> class of ops that look alike
    external: IntArray  # 1: there before the first op
    final: IntArray  # version that must be there at the end, -1: none
    always: int  # bytes that no schedule can free
    has_once: int  # 1: some write is made once


def recompute_model(
    graph: Graph,
    movable: NDArray[np.bool_] | None = None,
    move_cost: NDArray[np.float64] | None = None,
    *,
    recompute: bool = True,
    keeps_order: bool = False,
) -> Model:
    """Return the recompute problem of a graph; op and buffer indices stay the same.

    Args:
        graph: the program.
        movable: buffers that may be moved out and back; none by default.
        move_cost: price of moving each buffer one way, in the unit of the ops' costs.
        recompute: whether ops may be computed again.
        keeps_order: whether all ops, not just those with an effect, keep their order.
    """
    external = graph.buffer_producer < 0
    kept = graph.buffer_pinned | (external & ~graph.buffer_freeable)
    writers = graph.writes.transpose(graph.num_buffers)
    allowed = graph.op_recomputable if recompute else np.zeros(graph.num_ops, dtype=bool)
    if movable is None:
        movable = np.zeros(graph.num_buffers, dtype=bool)
    if move_cost is None:
        move_cost = np.zeros(graph.num_buffers)
    counted = external & kept  # never leaves, whatever the schedule
    return Model(
        graph.num_ops,
        graph.num_buffers,
        graph.reads.indptr.copy(),
        graph.reads.indices.copy(),
        graph.read_version.astype(np.int64),
        graph.makes.indptr.copy(),
        graph.makes.indices.copy(),
        graph.writes.indptr.copy(),
        graph.writes.indices.copy(),
        graph.write_version.astype(np.int64),
        graph.writes_once.astype(np.int64),
        writers.indptr.copy(),
        writers.indices.copy(),
        graph.buffer_producer.astype(np.int64),
        np.where(counted, 0, graph.buffer_nbytes).astype(np.int64),
        graph.op_workspace_bytes.astype(np.int64),
        graph.op_cost.astype(np.float64),
        allowed.astype(np.int64),
        ((graph.op_effect != Effect.NONE) | keeps_order).astype(np.int64),
        (movable & ~counted).astype(np.int64),
        np.asarray(move_cost, dtype=np.float64),
        op_classes(graph),
        external.astype(np.int64),
        np.where(kept, graph.final_version, -1).astype(np.int64),
        int(graph.buffer_nbytes[counted].sum()),
        int(graph.writes_once.any()),
    )


def tokens_of(graph: Graph, schedule: Schedule) -> IntArray:
    """Return a schedule as tokens."""
    offset = np.array([0, graph.num_ops, graph.num_ops + graph.num_buffers], dtype=np.int64)
    return schedule.index + offset[schedule.kind]


def schedule_of(graph: Graph, tokens: IntArray) -> Schedule:
    """Return tokens as a schedule."""
    first_reload = graph.num_ops + graph.num_buffers
    kind = np.full(len(tokens), int(StepKind.COMPUTE), dtype=np.int8)
    kind[tokens >= graph.num_ops] = StepKind.OFFLOAD
    kind[tokens >= first_reload] = StepKind.RELOAD
    offset = np.array([0, graph.num_ops, first_reload], dtype=np.int64)
    return Schedule(kind, tokens - offset[kind])


SMALLEST_MOVE_BYTES = 4096  # smaller buffers are not worth a move; a guess


def default_bandwidth(graph: Graph) -> float:
    """Return a bandwidth (bytes per unit of cost) for graphs whose costs have no unit.

    With this bandwidth, moving all buffers that the program makes once, one way, takes as long as the program.
    """
    made_bytes = float(graph.buffer_nbytes[graph.buffer_producer >= 0].sum())
    return max(made_bytes, 1.0) / (graph.total_cost or 1.0)


def movable_buffers(graph: Graph, named: Collection[Name] | None = None) -> NDArray[np.bool_]:
    """Return for every buffer whether it may be moved out.

    Small buffers are not worth a move. External buffers that the program may not free stay where they are.

    Args:
        graph: the program.
        named: the buffers that the executor can move; None for all.
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
