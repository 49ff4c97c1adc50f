"""The exact simulator: which bytes a schedule keeps alive at every step, and whether the schedule is valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.edges import EFFECT_CHAINS
from memwatch.planner.errors import OrderError
from memwatch.planner.op import Effect
from memwatch.planner.schedule import Schedule, StepKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.graph import Graph, SizeFn


@dataclass(frozen=True, slots=True, eq=False)
class PeakResult:
    """The live bytes of a schedule.

    Attributes:
        peak_bytes: the most bytes that are live at any instant.
        peak_step: first step at which they are; -1 where it is before the first step.
        live_bytes: live bytes while each step runs, its outputs and workspace included.
    """

    peak_bytes: int
    peak_step: int
    live_bytes: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Every allocation of a schedule: a buffer, and the steps from its first to its last (inclusive).

    `first_step` is -1 for what is live before the first step, `last_step` is the number of steps for
    what is live after the last one. A buffer that is recomputed or reloaded has several allocations.
    """

    buffer: IntArray
    first_step: IntArray
    last_step: IntArray


def simulate(graph: Graph, schedule: Schedule, size_fn: SizeFn | None = None) -> PeakResult:
    """Return the live bytes of a schedule.

    Args:
        graph: the program.
        schedule: its steps; an allocation is freed after the last step that uses it.
        size_fn: sizes (bytes) -> bytes that the allocator takes for them; exact sizes by default.

    Raises:
        OrderError: the schedule does not compute what the program computes.
    """
    if size_fn is not None:
        graph = graph.with_sizes(size_fn)
    return live_curve(graph, schedule, allocations(graph, schedule))


def program_peak(graph: Graph, size_fn: SizeFn | None = None) -> PeakResult:
    """Return the live bytes of the program as it was recorded, which frees some buffers late.

    Args:
        graph: the program.
        size_fn: as in `simulate`.
    """
    if size_fn is not None:
        graph = graph.with_sizes(size_fn)
    schedule = Schedule.from_order(np.arange(graph.num_ops))
    allocated = allocations(graph, schedule)
    recorded = np.maximum(allocated.last_step, graph.buffer_death[allocated.buffer])
    return live_curve(graph, schedule, Allocations(allocated.buffer, allocated.first_step, recorded))


def check_schedule(graph: Graph, schedule: Schedule) -> None:
    """Raise `OrderError` unless the schedule computes what the program computes."""
    allocations(graph, schedule)


def live_curve(graph: Graph, schedule: Schedule, allocated: Allocations) -> PeakResult:
    """Return the sums of allocations and workspaces, step by step."""
    num_steps = len(schedule)
    nbytes = graph.buffer_nbytes[allocated.buffer]
    change = np.zeros(num_steps + 2, dtype=np.int64)
    np.add.at(change, np.maximum(allocated.first_step, 0), nbytes)
    np.subtract.at(change, allocated.last_step + 1, nbytes)
    live = np.cumsum(change)[:num_steps]
    computes = schedule.kind == StepKind.COMPUTE
    live[computes] += graph.op_workspace_bytes[schedule.index[computes]]
    at_rest = graph.baseline_bytes
    if not num_steps or at_rest > live.max():
        return PeakResult(at_rest, -1, live)
    return PeakResult(int(live.max()), int(live.argmax()), live)


def allocations(graph: Graph, schedule: Schedule) -> Allocations:
    """Return when a schedule allocates and frees every buffer.

    Raises:
        OrderError: an op reads a buffer that is not there or has been mutated since, an op is missing,
            or effects are repeated or out of order.
    """
    from memwatch.planner import _liveness as kernel

    _check_steps(graph, schedule)
    buffer, step, kind, version = _events(graph, schedule)
    # within a step, kinds sort so that reads come before writes, as an op reads what it mutates
    by_buffer = np.lexsort((kind, step, buffer))
    indptr = np.searchsorted(buffer[by_buffer], np.arange(graph.num_buffers + 1)).astype(np.int64)
    external = graph.buffer_producer < 0
    kept = graph.buffer_pinned | (external & ~graph.buffer_freeable)
    events = kernel.Events(
        indptr, step[by_buffer], kind[by_buffer], version[by_buffer],
        external.astype(np.int64), np.where(kept, graph.final_version, -1), len(schedule),
    )  # fmt: skip
    found, status, fault_step, fault_buffer = kernel.intervals(events)
    if status != kernel.OK:
        raise OrderError(_fault(graph, schedule, int(status), int(fault_step), int(fault_buffer)))
    return Allocations(found.buffer, found.first, found.last)


def _events(graph: Graph, schedule: Schedule) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return what every step does to every buffer: (buffer, step, kind, version)."""
    from memwatch.planner import _liveness as kernel

    compute_steps = np.flatnonzero(schedule.kind == StepKind.COMPUTE)
    ops = schedule.index[compute_steps]
    buffers, steps, kinds, versions = [], [], [], []
    parts = (
        (graph.makes, kernel.MAKE, np.zeros(len(graph.makes.indices), dtype=np.int64)),
        (graph.reads, kernel.READ, graph.read_version),
        (graph.writes, kernel.WRITE, graph.write_version),
    )
    repeats = schedule.copies()[compute_steps] > 0
    for part, kind, version in parts:
        lengths = part.lengths()[ops]
        entry = np.repeat(part.indptr[ops] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        entry = entry + np.arange(len(entry))
        step = np.repeat(compute_steps, lengths)
        if kind == kernel.WRITE:  # a write that only the first computation makes
            real = ~(graph.writes_once[entry] & np.repeat(repeats, lengths))
            entry, step = entry[real], step[real]
        buffers.append(part.indices[entry])
        versions.append(version[entry])
        steps.append(step)
        kinds.append(np.full(len(entry), kind, dtype=np.int64))
    for step_kind, kind in ((StepKind.OFFLOAD, kernel.OFFLOAD), (StepKind.RELOAD, kernel.RELOAD)):
        moves = np.flatnonzero(schedule.kind == step_kind)
        buffers.append(schedule.index[moves])
        versions.append(np.full(len(moves), -1, dtype=np.int64))
        steps.append(moves)
        kinds.append(np.full(len(moves), kind, dtype=np.int64))
    return np.concatenate(buffers), np.concatenate(steps), np.concatenate(kinds), np.concatenate(versions)


def _check_steps(graph: Graph, schedule: Schedule) -> None:
    """Raise unless every op runs at least once, no effect runs twice, and effects are in program order."""
    ops = schedule.ops
    moved = schedule.index[schedule.kind != StepKind.COMPUTE]
    for indices, limit, what in ((ops, graph.num_ops, "ops"), (moved, graph.num_buffers, "buffers")):
        wrong = indices[(indices < 0) | (indices >= limit)]
        if len(wrong):
            raise OrderError(f"index {int(wrong[0])} is out of range; the graph has {limit} {what}")
    count = np.bincount(ops, minlength=graph.num_ops)
    missing = np.flatnonzero(count == 0)
    if len(missing):
        raise OrderError(
            f"op {graph.op_names[missing[0]]!r} is missing ({len(missing)} in all); an order names every op"
        )
    again = np.flatnonzero((count > 1) & ~graph.op_recomputable)
    if len(again):
        name, effect = graph.op_names[again[0]], Effect(int(graph.op_effect[again[0]])).name
        raise OrderError(
            f"op {name!r} is computed {int(count[again[0]])} times, but may run only once (effect {effect})"
        )
    first = np.full(graph.num_ops, len(ops), dtype=np.int64)
    np.minimum.at(first, ops, np.arange(len(ops)))
    for kinds in EFFECT_CHAINS:
        _check_chain(graph, np.flatnonzero(np.isin(graph.op_effect, kinds)), first)


def _check_chain(graph: Graph, chain: NDArray[np.int64], first: IntArray) -> None:
    swapped = np.flatnonzero(first[chain[:-1]] > first[chain[1:]])
    if len(swapped):
        early, late = (graph.op_names[chain[swapped[0] + offset]] for offset in (0, 1))
        raise OrderError(f"{late!r} runs before {early!r}, but both have effects and must keep program order")


def _fault(graph: Graph, schedule: Schedule, status: int, step: int, buffer: int) -> str:
    """Return the message for a fault that the kernel found."""
    from memwatch.planner import _liveness as kernel

    name = graph.buffer_names[buffer]
    if status == kernel.LOST:
        return f"buffer {name!r} is kept, but its last version is not there at the end"
    kind, index = StepKind(int(schedule.kind[step])), int(schedule.index[step])
    who = (
        f"op {graph.op_names[index]!r} (step {step})"
        if kind == StepKind.COMPUTE
        else f"step {step} ({kind.name})"
    )
    if status == kernel.STALE:
        return f"{who} needs another version of buffer {name!r}: an op that mutates it runs out of turn"
    return f"{who} needs buffer {name!r}, which is not there yet"
