"""Biographies: the life of every allocation in four phases.

lag: allocated, not yet used. use: from the first to the last use. drag: from the last use to the free. void: never
used at all. The words come from heap profiling (Röjemo & Runciman, ICFP 1996).

A kernel uses its workspace during the workspace's whole life. An allocation without a recorded use counts as void
only if memwatch would have recorded a use. Memory without a tensor is excluded, and so is memory of other threads,
because their ops are not recorded. A recording does not show two further kinds of uses: those after it was cut off, and
those by other processes.

An exception, a memory limit or a kill may end a recording in the middle of the program's work. Memory that was alive
then has an unknown last use: the program may have been about to read it. So nothing says that such memory is not used
any more, or that it is never used.

A process that `fork` or `multiprocessing` starts gets a copy of the memory of this one, or of its arguments. DataLoader
workers read the data set in this way. So the start of a process may be a use of memory that was alive then. Memory that
most iterations make anew is no data set: a start is no use of it. A forked process cannot read an accelerator's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import UNOBSERVED, WORKSPACE
from memwatch.capture.schema import ACCESSES, NONE
from memwatch.words.processes import GAVE_WAY_KIND, PROGRAM_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.live_curve import LiveCurve
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

PHASE_NAMES = ("lag", "use", "drag", "void")
LAG, USE, DRAG, VOID = range(len(PHASE_NAMES))
_AT_ONCE: Final = 1 << 20
"""Allocations whose times are read together. A guess: a long run has millions."""


class CutOff(NamedTuple):
    """The end of a recording that ended before the program's work.

    Attributes:
        error: the class of the exception that ended it; "" if no exception did, or if its class is not known.
        iterations: how many iterations had ended; None if the program has no sign of iterations.
    """

    error: str
    iterations: int | None


def cut_off_ns(capture: Capture) -> int | None:
    """Return when the last op of a recording that was cut off started, in unix time; None for a whole recording.

    The exception that ended the recorded code frees memory while it passes through the calls, after the last op.
    """
    kinds = {note.kind for note in capture.notes}
    if capture.meta.get("complete", True) and kinds.isdisjoint((PROGRAM_FAILED, GAVE_WAY_KIND)):
        return None
    return int(capture.tables["ops"]["start_ns"].max(initial=0))


def recorded_ends_ns(capture: Capture) -> IntArray:
    """Return when steps and marked iterations ended. Each was recorded at its end, so it was whole."""
    if not capture.rows("step_curve"):
        return capture.tables["steps"]["time_ns"]
    ends_ns = np.unique(capture.tables["step_curve"]["end_ns"])
    # the end of the block also ends a step in the curve; a process that was killed did not reach it
    return ends_ns[:-1] if capture.meta.get("complete", True) else ends_ns


def ends_known(allocations: Allocations, cut_ns: int | None) -> NDArray[np.bool_]:
    """Return which allocations had ended before the recording was cut off; all of them in a whole recording."""
    if cut_ns is None:
        return np.ones(len(allocations), dtype=bool)
    known: NDArray[np.bool_] = (allocations.death_ns != NONE) & (allocations.death_ns < cut_ns)
    return known


class ProcessStarts:
    """The times at which processes started that may have read this process's memory.

    Args:
        capture: the recorded tables.
    """

    def __init__(self, capture: Capture) -> None:
        times = np.array(capture.meta.get("processes_started_ns", []), dtype=np.int64).reshape(-1, 2)
        self._first_ns, self._last_ns = np.sort(times, axis=0).T

    def __len__(self) -> int:
        return len(self._first_ns)

    def are_within(self, from_ns: IntArray, until_ns: IntArray) -> NDArray[np.bool_]:
        """Return in which stretches of time a process started."""
        begun = np.searchsorted(self._first_ns, until_ns, side="right")
        within: NDArray[np.bool_] = begun > np.searchsorted(self._last_ns, from_ns, side="left")
        return within


@dataclass(frozen=True)
class Biographies:
    """Per allocation: when it was first and last used, as events of the live curve, and how long each phase was."""

    used: NDArray[np.bool_]
    known: NDArray[np.bool_]  # whether the uses were recorded; without them, all phases are unknown
    lag_known: NDArray[np.bool_]  # whether nothing can have used it unseen between birth and first use
    drag_known: NDArray[np.bool_]  # the same between last use and death, as far as the recording goes
    ends_known: NDArray[np.bool_]  # whether its life ended before the recording was cut off
    _curve: LiveCurve
    _times_ns: Callable[[IntArray | slice], _Times]

    def first_events(self, rows: IntArray | slice) -> IntArray:
        """Return the first event at or after the start of the first use of some allocations."""
        return np.searchsorted(self._curve.time_ns, self._times_ns(rows).start, side="left")

    def last_events(self, rows: IntArray | slice) -> IntArray:
        """Return the first event after the end of the last use of some allocations."""
        return np.searchsorted(self._curve.time_ns, self._times_ns(rows).end, side="right")

    def first_event(self, row: int) -> int:
        """Return the first event at or after the start of the first use of an allocation."""
        return int(self.first_events(np.array([row]))[0])

    def last_event(self, row: int) -> int:
        """Return the first event after the end of the last use of an allocation."""
        return int(self.last_events(np.array([row]))[0])

    def lag_ns(self, rows: IntArray | slice) -> IntArray:
        """Return how long some allocations waited for their first use."""
        times = self._times_ns(rows)
        return np.where(
            self.used[rows] & self.known[rows] & self.lag_known[rows], times.start - times.birth, 0
        )

    def use_ns(self, rows: IntArray | slice) -> IntArray:
        """Return how long some allocations were in use."""
        times = self._times_ns(rows)
        return np.where(self.used[rows] & self.known[rows], times.end - times.start, 0)

    def drag_ns(self, rows: IntArray | slice) -> IntArray:
        """Return how long some allocations lived on after their last use."""
        times = self._times_ns(rows)
        return np.where(
            self.used[rows] & self.known[rows] & self.drag_known[rows] & self.ends_known[rows],
            times.death - times.end,
            0,
        )

    def void_ns(self, rows: IntArray | slice) -> IntArray:
        """Return how long some allocations lived that no op ever used."""
        times = self._times_ns(rows)
        is_void = ~self.used[rows] & self.known[rows] & self.ends_known[rows]
        return np.where(is_void, times.death - times.birth, 0)

    def phase_at(self, event: int, rows: IntArray, *, so_far: bool = False) -> IntArray:
        """Return the phase of some allocations at an event: an index into PHASE_NAMES, -1 where it is not known.

        Args:
            event: the event.
            rows: the allocations.
            so_far: whether to return the phase as if the program had ended where the recording was cut off.
        """
        ends_known = so_far | self.ends_known[rows]
        drag = np.where(self.drag_known[rows] & ends_known, DRAG, NONE)
        lag = np.where(self.lag_known[rows], LAG, NONE)
        in_use = np.where(event < self.last_events(rows), USE, drag)
        phase = np.where(event < self.first_events(rows), lag, in_use)
        unused = np.where(ends_known, VOID, NONE)
        return np.where(self.known[rows], np.where(self.used[rows], phase, unused), NONE)

    def outlive_a_start(self, rows: IntArray, starts: ProcessStarts) -> NDArray[np.bool_]:
        """Return for which allocations a process started between their last use and their end."""
        times = self._times_ns(rows)
        return starts.are_within(np.where(self.used[rows], times.end, times.birth), times.death)


def write_biographies(
    capture: Capture, allocations: Allocations, curve: LiveCurve, bounds: UseBounds,
    may_be_used_unseen: Callable[[slice, IntArray, IntArray], NDArray[np.bool_]], *, ends_known: NDArray[np.bool_],
) -> Biographies:  # fmt: skip
    """Return the biography of every allocation.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        curve: the live curve.
        bounds: first and last op that used each allocation, -1 if none.
        may_be_used_unseen: takes allocations and a stretch of time of each; returns which of them may have been used
            in it without a recorded op.
        ends_known: whether each life ended before the recording was cut off.
    """
    used = bounds.first_op != NONE
    if not capture.rows("ops"):
        used = np.zeros(len(used), dtype=bool)
    in_kernel = allocations.origin == WORKSPACE
    # Only C++ made the memory without an op, such as the state of a random generator. It may also read it without one.
    is_made_by_cpp = allocations.origin == UNOBSERVED
    is_seen = used | ((allocations.storage != NONE) & (allocations.thread == NONE) & ~is_made_by_cpp)
    known = (is_seen | in_kernel) & (not capture.lacks("uses"))

    def times_ns(rows: IntArray | slice) -> _Times:
        return _times(capture, allocations, bounds, used, rows)

    lag_known, drag_known = np.ones(len(used), dtype=bool), np.ones(len(used), dtype=bool)
    for start in range(0, len(used), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        times = times_ns(rows)
        known[rows] &= used[rows] | in_kernel[rows] | ~may_be_used_unseen(rows, times.birth, times.death)
        lag_known[rows] = ~may_be_used_unseen(rows, times.birth, times.start)
        drag_known[rows] = ~may_be_used_unseen(rows, times.end, times.death)
    return Biographies(used | in_kernel, known, lag_known, drag_known, ends_known, curve, times_ns)


class _Times(NamedTuple):
    """When some allocations were made, first and last used, and freed, in unix time."""

    birth: IntArray
    start: IntArray
    end: IntArray
    death: IntArray


def _times(
    capture: Capture,
    allocations: Allocations,
    bounds: UseBounds,
    used: NDArray[np.bool_],
    rows: IntArray | slice,
) -> _Times:
    """Return the times of some allocations.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        bounds: first and last op that used each allocation.
        used: which allocations an op used.
        rows: the wanted allocations.
    """
    ops, uses = capture.tables["ops"], used[rows]
    birth, in_kernel = allocations.birth_ns[rows], allocations.origin[rows] == WORKSPACE
    start, end = np.zeros(len(birth), dtype=np.int64), np.zeros(len(birth), dtype=np.int64)
    start[uses] = ops["start_ns"][bounds.first_op[rows][uses]]
    end[uses] = ops["end_ns"][bounds.last_op[rows][uses]]
    end_of_block = int(capture.meta.get("end_ns", 0))
    death = np.where(allocations.death_ns[rows] == NONE, end_of_block, allocations.death_ns[rows])
    death = np.maximum(death, birth)
    start = np.where(in_kernel, birth, np.clip(start, birth, death))
    end = np.where(in_kernel, death, np.clip(end, birth, death))
    return _Times(birth, start, end, death)


class UseBounds(NamedTuple):
    """Per allocation: the first and the last op that read or wrote it, -1 if none did.

    The op that returns an allocation as its result does not use it by that.
    """

    first_op: IntArray
    last_op: IntArray


def use_bounds(capture: Capture, allocations: Allocations) -> UseBounds:
    """Return the first and last op that read or wrote each allocation. Backward reads the tensors that it unpacks."""
    count = len(allocations)
    first, last = np.full(count, np.iinfo(np.int32).max, np.int32), np.full(count, NONE, dtype=np.int32)
    uses = capture.tables["uses"]
    touched = uses["access"] != ACCESSES.index("output")
    unpacked_storages, unpacking_ops = _unpacked(capture)
    for storages, ops in (
        (uses["storage"][touched], uses["op"][touched]), (unpacked_storages, unpacking_ops),
    ):  # fmt: skip
        np.minimum.at(first, storages, ops.astype(np.int32, copy=False))
        np.maximum.at(last, storages, ops.astype(np.int32, copy=False))
    # a resize gives a storage another block. `uses` names only the storage, so each block has all uses of the storage
    later = allocations.is_later_block
    first[later], last[later] = first[allocations.storage[later]], last[allocations.storage[later]]
    return UseBounds(np.where(last == NONE, NONE, first), last)


def _unpacked(capture: Capture) -> tuple[IntArray, IntArray]:
    """Return the storages that backward unpacked, and the op that read each."""
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    storage_of = np.full(int(packs["pack"].max(initial=-1)) + 2, NONE, dtype=np.int64)
    storage_of[packs["pack"]] = packs["storage"]
    storage = storage_of[unpacks["pack"]]
    read = (unpacks["released"] == 0) & (storage != NONE)
    # an unpack belongs to the op after it; there may be none
    return storage[read], np.minimum(unpacks["op"][read], capture.rows("ops") - 1)


def sources_of(capture: Capture, ops: IntArray) -> dict[int, int]:
    """Map each of some ops to the last storage that it reads, if it reads any."""
    uses = capture.tables["uses"]
    rows = np.flatnonzero((uses["access"] == ACCESSES.index("read")) & np.isin(uses["op"], ops))
    return dict(zip(uses["op"][rows].tolist(), uses["storage"][rows].tolist(), strict=True))
