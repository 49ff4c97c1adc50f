"""Convert a graph to the arrays that the C++ kernels read, and schedules to the kernels' tokens and back.

A schedule runs each op once or more. It may also move a buffer out of memory and later back. `Model` lists which ops
may run again, which buffers may move, and the price of each. It also gives the same class to ops that correspond in
repeated blocks, such as the layers of a network.
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


_ROUNDS = 3  # `op_classes` compares the ops up to this many edges around each op; a guess


def op_classes(graph: Graph) -> IntArray:
    """Return a class number for each op. Ops of one class are alike, and so are the ops around them.

    The classes are Weisfeiler-Leman colours. The first colour of an op stands for its cost, its effect and the sizes
    of its buffers. Each round adds the colours of the ops right before and after it. So corresponding ops of identical
    layers get the same number, except in the first and the last layers of the network.
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
    """Return one number for each op that depends only on the colours of its neighbours, in any order.

    Each colour has a random weight, and the number is the sum of the neighbours' weights. Different neighbours can have
    the same sum, but hardly ever do.
    """
    # a fixed seed, so that the same graph always gets the same classes
    weights = np.random.default_rng(0).integers(1, 2**31, size=int(colours.max(initial=0)) + 1)
    return neighbours.sum_per_row(weights[colours])


class Model(NamedTuple):
    """The part of a graph that the kernels need.

    A schedule is a list of tokens. Token t < num_ops computes op t, num_ops + b moves buffer b out, and
    num_ops + num_buffers + b moves it back. The buffers that op i reads are ``read[read_ptr[i]:read_ptr[i + 1]]``;
    `make`, `write` and `writer` have a `_ptr` of the same form.

    The fields have the order of `Model` in `model.h`.
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
    writer_ptr: IntArray  # row b: the ops that mutate buffer b, in the order of its versions
    writer: IntArray
    producer: IntArray
    nbytes: IntArray
    workspace: IntArray
    cost: NDArray[np.float64]
    again: IntArray  # 1: the op may be computed more than once
    stays: IntArray  # 1: the first run of the op keeps its place among the first runs of all ops with a 1
    movable: IntArray  # 1: the buffer may be moved out
    move_cost: NDArray[np.float64]  # price of moving a buffer one way
    kind: IntArray  # class of each op, see `op_classes`
    external: IntArray  # 1: the buffer exists before the first op
    final: IntArray  # version of the buffer that must exist after the last op, -1: none
    always: int  # bytes that no schedule can free; `nbytes` is 0 for their buffers
    has_once: int  # 1: `once` has a 1


def recompute_model(
    graph: Graph,
    movable: NDArray[np.bool_] | None = None,
    move_cost: NDArray[np.float64] | None = None,
    *,
    recompute: bool = True,
    keeps_order: bool = False,
) -> Model:
    """Return the recompute problem of a graph. Ops and buffers keep their indices.

    Args:
        graph: the program.
        movable: buffers that may be moved out and back; none by default.
        move_cost: price of moving each buffer one way, in the unit of the ops' costs.
        recompute: whether ops may be computed again.
        keeps_order: whether the first runs of all ops keep their order. If False, only ops with an effect do.
    """
    external = graph.buffer_producer < 0
    kept = graph.buffer_pinned | (external & ~graph.buffer_freeable)
    writers = graph.writes.transpose(graph.num_buffers)
    allowed = graph.op_recomputable if recompute else np.zeros(graph.num_ops, dtype=bool)
    if movable is None:
        movable = np.zeros(graph.num_buffers, dtype=bool)
    if move_cost is None:
        move_cost = np.zeros(graph.num_buffers)
    always = external & kept  # in memory all the time, whatever the schedule
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
        np.where(always, 0, graph.buffer_nbytes).astype(np.int64),
        graph.op_workspace_bytes.astype(np.int64),
        graph.op_cost.astype(np.float64),
        allowed.astype(np.int64),
        ((graph.op_effect != Effect.NONE) | keeps_order).astype(np.int64),
        (movable & ~always).astype(np.int64),
        np.asarray(move_cost, dtype=np.float64),
        op_classes(graph),
        external.astype(np.int64),
        np.where(kept, graph.final_version, -1).astype(np.int64),
        int(graph.buffer_nbytes[always].sum()),
        int(graph.writes_once.any()),
    )


def tokens_of(graph: Graph, schedule: Schedule) -> IntArray:
    """Return the tokens of a schedule, as the kernels read them."""
    offset = np.array([0, graph.num_ops, graph.num_ops + graph.num_buffers], dtype=np.int64)
    return schedule.index + offset[schedule.kind]


def schedule_of(graph: Graph, tokens: IntArray) -> Schedule:
    """Return the schedule that a kernel gave as tokens."""
    first_reload = graph.num_ops + graph.num_buffers
    kind = np.full(len(tokens), int(StepKind.COMPUTE), dtype=np.int8)
    kind[tokens >= graph.num_ops] = StepKind.OFFLOAD
    kind[tokens >= first_reload] = StepKind.RELOAD
    offset = np.array([0, graph.num_ops, first_reload], dtype=np.int64)
    return Schedule(kind, tokens - offset[kind])


SMALLEST_MOVE_BYTES = 4096  # a buffer of fewer bytes is not worth a move; a guess


def default_bandwidth(graph: Graph) -> float:
    """Return a bandwidth, in bytes per unit of op cost, for a graph whose costs have no unit.

    With this bandwidth, it takes as long to move out every buffer that the program makes as to run the program.
    """
    made_bytes = float(graph.buffer_nbytes[graph.buffer_producer >= 0].sum())
    return max(made_bytes, 1.0) / (graph.total_cost or 1.0)


def movable_buffers(graph: Graph, named: Collection[Name] | None = None) -> NDArray[np.bool_]:
    """Return for every buffer whether it may be moved out.

    A buffer below `SMALLEST_MOVE_BYTES` stays in memory. So does an external buffer that the program may not free.

    Args:
        graph: the program.
        named: the buffers that the executor can move; None for all.
    """
    can_leave = (graph.buffer_producer >= 0) | graph.buffer_freeable
    if named is not None:
        can_leave &= np.array([name in named for name in graph.buffer_names], dtype=bool)
    movable: NDArray[np.bool_] = can_leave & (graph.buffer_nbytes >= SMALLEST_MOVE_BYTES)
    return movable


def move_costs(graph: Graph, bandwidth: float | None) -> NDArray[np.float64]:
    """Return the price of moving each buffer one way.

    Args:
        graph: the program.
        bandwidth: bytes per unit of op cost; `default_bandwidth` if None.

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
    """Return how many bytes a schedule moves. A buffer that moves out and back counts twice."""
    return int(graph.buffer_nbytes[schedule.index[schedule.kind != StepKind.COMPUTE]].sum())
