"""Define schedules, and simulate them: compute the live bytes at every step, and check that the schedule is valid.

A schedule is the list of the steps of a plan, in order. A step computes an op, moves a buffer out, or moves it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.planner.graph import EFFECT_CHAINS, Effect, Graph, Name, OrderError, SizeFn
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from memwatch.planner.graph import IntArray


class StepKind(IntEnum):
    """Kinds of step."""

    COMPUTE = 0  # run an op; every time after the first is a recompute
    OFFLOAD = 1  # copy a buffer out; its memory is freed after its last use before the reload
    RELOAD = 2  # allocate the buffer again and copy it back


class Step(NamedTuple):
    """One step: its kind, and the op that it computes or the buffer that it moves."""

    kind: StepKind
    target: int


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """A sequence of steps. The steps also determine when each buffer is freed (see `allocations`).

    Attributes:
        kind: `StepKind` of every step.
        index: op index of a compute, buffer index of an offload or a reload.
    """

    kind: NDArray[np.int8]
    index: IntArray

    @classmethod
    def from_order(cls, order: Sequence[int] | IntArray) -> Schedule:
        """Return the schedule that computes ops in this order; an op that appears again is a recompute."""
        index = np.array(order, dtype=np.int64)
        return cls(np.zeros(len(index), dtype=np.int8), index)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Schedule:
        """Return a schedule of these steps."""
        listed = list(steps)
        kind = np.array([step.kind for step in listed], dtype=np.int8)
        return cls(kind, np.array([step.target for step in listed], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Step]:
        for kind, index in zip(self.kind.tolist(), self.index.tolist(), strict=True):
            yield Step(StepKind(kind), index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return np.array_equal(self.kind, other.kind) and np.array_equal(self.index, other.index)

    def __hash__(self) -> int:
        return hash((self.kind.tobytes(), self.index.tobytes()))

    @property
    def ops(self) -> IntArray:
        """Ops in the order they are computed, recomputes included."""
        ops: IntArray = self.index[self.kind == StepKind.COMPUTE]
        return ops

    def copies(self) -> IntArray:
        """Return for every step how often it came before: the same op, or the same move of the same buffer."""
        key = self.index * len(StepKind) + self.kind
        order = np.argsort(key, kind="stable")
        grouped = key[order]
        starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1]))) if len(key) else key
        lengths = np.diff(np.append(starts, len(key)))
        copy = np.empty(len(key), dtype=np.int64)
        copy[order] = np.arange(len(key)) - np.repeat(starts, lengths)
        return copy


@dataclass(frozen=True, slots=True, eq=False)
class PeakResult:
    """The live bytes of a schedule.

    Attributes:
        peak_bytes: the most bytes that are live at any instant.
        peak_step: the first step with the peak's bytes; -1 if the peak is before the first step.
        live_bytes: live bytes while each step runs, its outputs and workspace included.
    """

    peak_bytes: int
    peak_step: int
    live_bytes: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Every allocation of a schedule: a buffer, and the steps from its first to its last (inclusive).

    `first_step` is -1 for a buffer that is live before the first step. `last_step` is the number of steps for a buffer
    that is live after the last step. A buffer that is recomputed or reloaded has several allocations.
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
        OrderError: the schedule does not compute the same as the program.
    """
    if size_fn is not None:
        graph = graph.with_sizes(size_fn)
    return live_curve(graph, schedule, allocations(graph, schedule))


def program_peak(graph: Graph, size_fn: SizeFn | None = None) -> PeakResult:
    """Return the live bytes of the program as it was recorded. The program may free buffers later than a plan would.

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
    """Raise `OrderError` unless the schedule computes the same as the program."""
    allocations(graph, schedule)


def live_curve(graph: Graph, schedule: Schedule, allocated: Allocations) -> PeakResult:
    """Return the sum of the live allocations and the workspace at each step."""
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
    _check_steps(graph, schedule)
    events = _events(graph, schedule)
    external = graph.buffer_producer < 0
    kept = graph.buffer_pinned | (external & ~graph.buffer_freeable)
    final = np.where(kept, graph.final_version, -1)
    has_moves = np.zeros(graph.num_buffers, dtype=bool)
    has_moves[schedule.index[schedule.kind != StepKind.COMPUTE]] = True
    found, is_wrong = _allocations_without_moves(events, final, has_moves, len(schedule))
    columns = [(found.buffer, found.first_step, found.last_step)]
    # the slow walk handles moves, and finds the step of a fault for the message
    for buffer in np.flatnonzero(has_moves | is_wrong).tolist():
        intervals, fault, step = _walk(events.of(buffer), int(final[buffer]), len(schedule))
        if fault != OK:
            raise OrderError(_fault_message(graph, schedule, fault, step, buffer))
        assert not is_wrong[buffer], "the two ways to count disagree"
        steps = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        columns.append((np.full(len(steps), buffer), steps[:, 0], steps[:, 1]))
    return Allocations(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


# kinds of event
MAKE, RELOAD, READ, WRITE, OFFLOAD = 0, 1, 2, 3, 4
# faults: the buffer is not there, it has another version than the step needs, or it lacks its last version at the end
OK, ABSENT, STALE, LOST = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """The events of all buffers, sorted by buffer, then by step. Within a step, reads come before writes.

    An external buffer is made at step -1. The version of a read is the version that it reads. The version of a write is
    the version that it makes.
    """

    buffer: IntArray
    step: IntArray
    kind: IntArray
    version: IntArray

    def of(self, buffer: int) -> list[tuple[int, int, int]]:
        """Return (step, kind, version) of the events of one buffer."""
        first, last = np.searchsorted(self.buffer, [buffer, buffer + 1])
        parts = (part[first:last].tolist() for part in (self.step, self.kind, self.version))
        return list(zip(*parts, strict=True))


def _allocations_without_moves(
    events: _Events, final: IntArray, has_moves: NDArray[np.bool_], num_steps: int
) -> tuple[Allocations, NDArray[np.bool_]]:
    """Return the allocations of the buffers without moves, and for every buffer whether a use of it is not valid.

    Args:
        events: the events of all buffers.
        final: buffer -> version that must be there at the end; -1 if the buffer may be freed.
        has_moves: the buffers that are left out.
        num_steps: steps of the schedule.
    """
    kept = ~has_moves[events.buffer]
    buffer, step, kind, version = (
        part[kept] for part in (events.buffer, events.step, events.kind, events.version)
    )
    number = np.arange(len(buffer))
    is_use = kind != MAKE
    needs = np.where(kind == WRITE, version - 1, version)
    # A repeated make opens an allocation only if the next use needs the new version, 0, or if no copy is there.
    # Otherwise its result is dropped at once, and the copy that is there lives on.
    following = np.minimum.accumulate(np.where(is_use, number, len(buffer))[::-1])[::-1]
    has_following = following < len(buffer)
    has_following[has_following] = buffer[following[has_following]] == buffer[has_following]
    wanted = final[buffer]
    wanted[has_following] = needs[following[has_following]]
    is_first = np.diff(buffer, prepend=-1) != 0
    opens = ~is_use & (is_first | (wanted == 0))
    dropped = ~is_use & ~opens
    buffer_of_drop, step_of_drop = buffer[dropped], step[dropped]
    buffer, step, version, needs, is_use, opens = (
        part[~dropped] for part in (buffer, step, version, needs, is_use, opens)
    )
    # the version of the buffer before each event; -1 if it was not made yet
    before = np.concatenate(([-1], version[:-1]))
    before[np.diff(buffer, prepend=-1) != 0] = -1
    is_last = np.diff(buffer, append=-1) != 0
    left = np.full(len(final), -1, dtype=np.int64)
    left[buffer[is_last]] = version[is_last]
    is_wrong = (final >= 0) & (left != final) & ~has_moves
    is_wrong[buffer[is_use & (before != needs)]] = True
    start = np.flatnonzero(opens)
    until = step[np.append(start[1:], len(step)) - 1] if len(start) else step[:0]
    owner = buffer[start]
    ends = (np.diff(owner, append=-1) != 0) & (final[owner] >= 0)
    allocated = Allocations(
        np.concatenate((owner, buffer_of_drop)),
        np.concatenate((step[start], step_of_drop)),
        np.concatenate((np.where(ends, num_steps, until), step_of_drop)),
    )
    return allocated, is_wrong


def _walk(
    events: list[tuple[int, int, int]], final: int, num_steps: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Return the allocations of one buffer, and (fault, step) of its first fault.

    A make or a reload produces a version. If the next use expects this version, a new allocation begins. Otherwise the
    result is dropped at once, and the old allocation lives on.
    """
    # the version that each event expects, or the first use after it; `final` if no use follows
    wanted = [final] * (len(events) + 1)
    for slot in range(len(events) - 1, -1, -1):
        _, kind, version = events[slot]
        wanted[slot] = version if kind == READ else version - 1 if kind == WRITE else wanted[slot + 1]
    found: list[tuple[int, int]] = []
    first, last, current, on_host = -1, -1, -1, -1
    for slot, (step, kind, version) in enumerate(events):
        if kind in (MAKE, RELOAD):
            brought = 0 if kind == MAKE else on_host
            if brought < 0:
                return found, ABSENT, step
            if current >= 0 and wanted[slot + 1] != brought:
                found.append((step, step))
                continue
            if current >= 0:
                found.append((first, last))
            first, last, current = step, step, brought
            continue
        if current < 0:
            return found, ABSENT, step
        if kind == OFFLOAD:
            on_host = current
        elif current != wanted[slot]:
            return found, STALE, step
        if kind == WRITE:
            current = version
        last = step
    if final >= 0:
        if current != final:
            return found, LOST, num_steps
        last = num_steps
    return [*found, (first, last)] if current >= 0 else found, OK, -1


def _events(graph: Graph, schedule: Schedule) -> _Events:
    """Return the events of a schedule."""
    compute_steps = np.flatnonzero(schedule.kind == StepKind.COMPUTE)
    ops = schedule.index[compute_steps]
    external = np.flatnonzero(graph.buffer_producer < 0)
    none = np.zeros(len(external), dtype=np.int64)
    buffers, steps, kinds, versions = [external], [none - 1], [none + MAKE], [none]
    parts = (
        (graph.makes, MAKE, np.zeros(len(graph.makes.indices), dtype=np.int64)),
        (graph.reads, READ, graph.read_version),
        (graph.writes, WRITE, graph.write_version),
    )
    repeats = schedule.copies()[compute_steps] > 0
    for part, kind, version in parts:
        lengths = part.lengths()[ops]
        entry = part.entries(ops)
        step = np.repeat(compute_steps, lengths)
        if kind == WRITE:  # a recompute leaves out the writes that only the first computation makes
            real = ~(graph.writes_once[entry] & np.repeat(repeats, lengths))
            entry, step = entry[real], step[real]
        buffers.append(part.indices[entry])
        versions.append(version[entry])
        steps.append(step)
        kinds.append(np.full(len(entry), kind, dtype=np.int64))
    for step_kind, kind in ((StepKind.OFFLOAD, OFFLOAD), (StepKind.RELOAD, RELOAD)):
        moves = np.flatnonzero(schedule.kind == step_kind)
        buffers.append(schedule.index[moves])
        versions.append(np.full(len(moves), -1, dtype=np.int64))
        steps.append(moves)
        kinds.append(np.full(len(moves), kind, dtype=np.int64))
    columns = [np.concatenate(parts) for parts in (buffers, steps, kinds, versions)]
    # the numbers of the kinds put the reads of a step before its writes, because an op reads what it mutates
    order = np.lexsort((columns[2], columns[1], columns[0]))
    return _Events(*(column[order] for column in columns))


def _check_steps(graph: Graph, schedule: Schedule) -> None:
    """Raise unless every op runs at least once, only recomputable ops run again, and effects are in program order."""
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
        name = graph.op_names[again[0]]
        effect = Effect(int(graph.op_effect[again[0]])).name
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


def _fault_message(graph: Graph, schedule: Schedule, fault: int, step: int, buffer: int) -> str:
    name = graph.buffer_names[buffer]
    if fault == LOST:
        return f"buffer {name!r} is kept, but its last version is not there at the end"
    kind = StepKind(int(schedule.kind[step]))
    index = int(schedule.index[step])
    who = (
        f"op {graph.op_names[index]!r} (step {step})"
        if kind == StepKind.COMPUTE
        else f"step {step} ({kind.name})"
    )
    if fault == STALE:
        return f"{who} needs another version of buffer {name!r}: an op that mutates it runs out of turn"
    return f"{who} needs buffer {name!r}, which is not there yet"


_SMALLEST_SHARE_RATIO: Final = 0.01
"""A group that takes a smaller share of the peak is left out of the sentence. A guess."""


@dataclass(frozen=True)
class AtPeak:
    """The bytes at the peak of a schedule, without external buffers. Each buffer counts in the first group that fits.

    Attributes:
        op: the op that runs at the peak; None if a move runs.
        own_bytes: inputs, outputs and workspace of this op.
        kept_bytes: buffers that stay to the end.
        once_bytes: buffers that were made by ops that may not run again.
        other_bytes: buffers that wait for later ops and could be computed again.
    """

    op: str | None
    own_bytes: int
    kept_bytes: int
    once_bytes: int
    other_bytes: int

    def __str__(self) -> str:
        """Return the figures as the end of a sentence."""
        waiting = [
            (self.kept_bytes, "stay to the end"),
            (self.once_bytes, "were made by ops that run only once"),
            (self.other_bytes, "wait for later ops"),
        ]
        least = _SMALLEST_SHARE_RATIO * (self.own_bytes + sum(nbytes for nbytes, _ in waiting))
        parts = [f"{format_bytes(nbytes)} {what}" for nbytes, what in waiting if nbytes > least]
        who = "a move needs" if self.op is None else f"{self.op} needs"
        rest = f" while {_listed(parts)}" if parts else ""
        return f"at its peak {who} {format_bytes(self.own_bytes)}{rest}"


def at_peak(graph: Graph, schedule: Schedule, name_of: Callable[[Name], str]) -> AtPeak | None:
    """Return the bytes at the peak of a schedule, by reason; None if the peak is before the first step.

    Args:
        graph: the program.
        schedule: the steps in order.
        name_of: names an op for people.
    """
    allocated = allocations(graph, schedule)
    step = live_curve(graph, schedule, allocated).peak_step
    if step < 0:
        return None
    is_there = (allocated.first_step <= step) & (step <= allocated.last_step)
    there = np.unique(allocated.buffer[is_there])
    there = there[graph.buffer_producer[there] >= 0]
    target = int(schedule.index[step])
    is_op = schedule.kind[step] == StepKind.COMPUTE
    touched = graph.touches.row(target) if is_op else np.array([target])
    own = np.isin(there, touched)
    kept = ~own & graph.buffer_pinned[there]
    once = ~own & ~kept & ~graph.op_recomputable[graph.buffer_producer[there]]
    nbytes = graph.buffer_nbytes[there]
    workspace = int(graph.op_workspace_bytes[target]) if is_op else 0
    return AtPeak(
        name_of(graph.op_names[target]) if is_op else None,
        int(nbytes[own].sum()) + workspace,
        int(nbytes[kept].sum()),
        int(nbytes[once].sum()),
        int(nbytes[~(own | kept | once)].sum()),
    )


def _listed(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
