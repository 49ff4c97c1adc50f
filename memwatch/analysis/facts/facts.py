"""All facts of one capture about a device. A table, or a column per allocation, is computed once, when needed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, UNRECORDED, Allocations, in_order, join_allocations
from memwatch.analysis.facts.biographies import (
    Biographies,
    CutOff,
    ProcessStarts,
    UseBounds,
    cut_off_ns,
    ends_known,
    recorded_ends_ns,
    use_bounds,
    write_biographies,
)
from memwatch.analysis.facts.categories import Categories, Categoriser
from memwatch.analysis.facts.devices import narrowed
from memwatch.analysis.facts.iterations import (
    KeptAcross,
    at,
    boundaries,
    by_live_curve,
    has_whole_last_call,
    kept_across,
    made_in_most,
    made_to_be_kept,
    may_be_in_forward,
    seen_in_lasting,
    starts_of_passes,
)
from memwatch.analysis.facts.live_curve import LiveCurve, trace_live_curve
from memwatch.analysis.facts.names import (
    MadeBy,
    Names,
    Purposes,
    autocast_copies,
    made_by,
    owning_modules,
    purposes,
    role_names,
)
from memwatch.analysis.facts.places import CallStacks, Places, Texts, find_places, with_empty_end
from memwatch.analysis.facts.recomputes import Recomputes
from memwatch.analysis.facts.reserved import ReservedBytes, as_counted_at_entry, reserved_bytes
from memwatch.analysis.facts.role_times import PastRole, RoleTimes
from memwatch.analysis.facts.step_curve import StepCurve, step_curve
from memwatch.capture.schema import NONE
from memwatch.device_names import is_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.coded import Coded
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray


_MOST_CATEGORIES: Final = 64
"""Results of `categories_at` that are kept; each has a number for each allocation. Several events may share one. A
guess."""


class Facts:
    """The facts about one device in a capture. All columns "per allocation" have the order of `allocations`."""

    def __init__(self, capture: Capture, device: str) -> None:
        self.device = device
        self._whole = capture
        self._source = narrowed(capture, device)
        self._categories: dict[tuple[tuple[tuple[int, str], PastRole], ...], Categories] = {}
        self._categories_at: dict[int, Categories] = {}
        self._op_at: dict[int, int] = {}

    @cached_property
    def _joined(self) -> tuple[Capture, Allocations, LiveCurve]:
        capture, allocations = join_allocations(self._source)
        return capture, *trace_live_curve(capture, as_counted_at_entry(capture, allocations))

    @property
    def capture(self) -> Capture:
        """The recorded tables, with a single number for all storages on the same memory."""
        return self._joined[0]

    @property
    def allocations(self) -> Allocations:
        """Every piece of memory."""
        return self._joined[1]

    @property
    def curve(self) -> LiveCurve:
        """The live bytes after every allocation and free."""
        return self._joined[2]

    @cached_property
    def steps(self) -> StepCurve:
        """The peak, floor and times of each step; or of each iteration, if no schedule chose the recorded steps."""
        if self._source.rows("step_curve"):
            return step_curve(self._source, self.device)
        return by_live_curve(self._source, self.curve)

    @cached_property
    def _unrecorded_step(self) -> IntArray:
        """Per allocation: the step that made it, if that was not recorded, else -1."""
        lost = self.allocations.origin == UNRECORDED
        if not lost.any():
            return np.broadcast_to(np.int32(NONE), lost.shape)  # one number, whatever the length
        steps: IntArray = np.full(len(lost), NONE, dtype=np.int32)
        steps[lost] = self.steps.at(self.allocations.birth_ns[lost])
        return steps

    @cached_property
    def reserved(self) -> ReservedBytes | None:
        """The bytes that the allocator reserved; None for an allocator without a cache."""
        alive = self.alive_at(self.curve.peak_event)
        return reserved_bytes(self.capture, self.device, self.allocations, self.curve, alive)

    @cached_property
    def strings(self) -> Texts:
        """The interned texts, empty text at -1."""
        return with_empty_end(self.capture.strings)

    @cached_property
    def places(self) -> Places:
        """Lines and modules of ops and stacks; modules have the names that they have at the peak."""
        if self._source is self._whole:
            return find_places(self.capture, self.op_at_peak)
        # a module has one name, on whichever device it lies
        return find_places(in_order(self._whole), self.op_at_peak)

    @cached_property
    def call_stacks(self) -> CallStacks:
        """The frames of every recorded stack."""
        return CallStacks(self.capture)

    @cached_property
    def use_bounds(self) -> UseBounds:
        """First and last op that used each allocation."""
        return use_bounds(self.capture, self.allocations)

    @cached_property
    def biographies(self) -> Biographies:
        """The four phases of every allocation."""
        return write_biographies(
            self.capture,
            self.allocations,
            self.curve,
            self.use_bounds,
            self._may_be_used_unseen,
            ends_known=self.ends_known,
        )

    def _may_be_used_unseen(self, rows: slice, from_ns: IntArray, until_ns: IntArray) -> NDArray[np.bool_]:
        """Return which allocations may have had a use in a stretch of time.

        A step was not recorded then, or a process started that can read them.
        """
        is_read_elsewhere = self._process_starts.are_within(from_ns, until_ns)
        return self.steps.spans_unrecorded(from_ns, until_ns) | (is_read_elsewhere & self._may_be_sent[rows])

    def are_read_by_ops_alone(self, rows: IntArray) -> NDArray[np.bool_]:
        """Return which allocations no other process can have read after their last use."""
        is_read = self.biographies.outlive_a_start(rows, self._process_starts)
        return ~(is_read & self._may_be_sent[rows])

    @cached_property
    def _process_starts(self) -> ProcessStarts:
        """The times at which processes started that may have read this process's memory."""
        return ProcessStarts(self._source)

    @cached_property
    def _may_be_sent(self) -> NDArray[np.bool_]:
        """Per allocation: whether a starting process may read it. It may be a data set, but no result of iterations."""
        if not is_host(self.device) or not len(self._process_starts):
            return np.broadcast_to(np.False_, len(self.allocations))  # one value, whatever the length
        return ~made_in_most(self.capture, self.allocations, self.kept_across.ends_ns)

    @cached_property
    def ends_known(self) -> NDArray[np.bool_]:
        """Per allocation: whether it had ended before the recording was cut off. All have in a whole recording."""
        return ends_known(self.allocations, self._cut_off_ns)

    @cached_property
    def _cut_off_ns(self) -> int | None:
        return cut_off_ns(self._source)

    @cached_property
    def ended_iterations_ns(self) -> IntArray:
        """When iterations ended, in order; of a recording that was cut off without the one that it ends in."""
        ends_ns = np.sort(self.kept_across.ends_ns)
        cut_ns = self._cut_off_ns
        if cut_ns is None:
            return ends_ns
        # the op of another end, such as that of a backward, may be the one that failed
        return ends_ns[(ends_ns < cut_ns) | np.isin(ends_ns, recorded_ends_ns(self._source))]

    def is_of_ended_iteration(self, row: int) -> bool:
        """Return True for an allocation from before the end of the last whole iteration."""
        ends_ns = self.ended_iterations_ns
        return len(ends_ns) > 0 and bool(self.allocations.birth_ns[row] < ends_ns[-1])

    @cached_property
    def cut_off(self) -> CutOff | None:
        """The end of a recording that was cut off; None for a whole recording."""
        if self._cut_off_ns is None:
            return None
        count = None
        if self.kept_across.are_told and not may_be_in_forward(self._source):
            count = len(self.ended_iterations_ns) + has_whole_last_call(self._source)
        return CutOff(str(self._source.meta.get("ended_by", "")), count)

    @cached_property
    def categories(self) -> Categories:
        """The category of every allocation: at the peak if it is alive then, else of its whole life."""
        return self.categories_at(self.curve.peak_event)

    def categories_at(self, event: int) -> Categories:
        """Return the category of every allocation: at an event if it is alive then, else of its whole life."""
        if event in self._categories_at:
            return self._categories_at[event]
        alive = set(self.allocations.storage[self.alive_at(event)].tolist())
        past = self.role_times.past_at(self.op_at(event), alive)
        key = tuple(sorted(past.items()))
        if key not in self._categories:
            if len(self._categories) >= _MOST_CATEGORIES:  # each has a number for each allocation
                self._categories.clear()
                self._categories_at.clear()
            self._categories[key] = self._categoriser.at(past)
        self._categories_at[event] = self._categories[key]
        return self._categories[key]

    @cached_property
    def _categoriser(self) -> Categoriser:
        return Categoriser(self.capture, self.allocations, self.kept_across)

    @cached_property
    def role_times(self) -> RoleTimes:
        """The times at which each storage had each role."""
        return RoleTimes(self.capture, self.allocations, self.call_stacks)

    @cached_property
    def kept_across(self) -> KeptAcross:
        """The allocations that stay alive across iterations.

        In a plain loop, these are the allocations that stay alive across its passes.
        """
        capture, allocations = self.capture, self.allocations
        bounds = boundaries(capture, self.places)
        if len(bounds.ends_ns) or capture.rows("calls"):
            return kept_across(capture, allocations, self.use_bounds, bounds)
        passes_ns = starts_of_passes(capture, self.call_stacks)
        is_kept = made_to_be_kept(capture, allocations)
        kept = kept_across(capture, allocations, self.use_bounds, at(passes_ns))
        return KeptAcross(
            needed=kept.needed & is_kept,
            by_itself=kept.by_itself & is_kept,
            like_others=kept.like_others & is_kept,
            lasting=seen_in_lasting(capture, allocations),
            are_told=False,
            ends_ns=passes_ns,
        )

    @cached_property
    def module_classes(self) -> frozenset[str]:
        """The names of the classes of the recorded modules."""
        return frozenset(self.capture.text(np.unique(self.capture.tables["modules"]["class_name"])))

    @cached_property
    def recomputes(self) -> Recomputes:
        """The tensors that checkpoints computed again in backward."""
        return Recomputes(self.capture)

    @cached_property
    def autocast_copies(self) -> dict[int, str]:
        """The name of the parameter, by the storage of a copy of it that autocast's cache held."""
        rows = np.flatnonzero(self.categories.role.isin(["parameter"]))
        names = self.role_names[rows].tolist()
        parameters = dict(zip(self.allocations.storage[rows].tolist(), names, strict=True))
        return autocast_copies(self.capture, parameters)

    @cached_property
    def purposes(self) -> Purposes:
        """Per allocation: the module that returned it, and the op that saved it for backward."""
        return purposes(self.capture, self.allocations, self.places)

    def names(self, allocations: IntArray | slice) -> list[str]:
        """Return the names of some allocations."""
        return self._namer.of(allocations)

    def only_older(self, allocations: IntArray) -> NDArray[np.bool_]:
        """Return which allocations have no better name than that they are older than the block."""
        return self._namer.only_older(allocations)

    @cached_property
    def _namer(self) -> Names:
        tree, has_ops = self.places.module_tree, not self.capture.lacks("ops")
        thread, made, roles = self.allocations.thread, self.made_by, self.categories
        step = self._unrecorded_step
        role_names = self.role_names
        is_older = self.allocations.origin == BASELINE
        return Names(
            self.strings, thread, step, is_older, made, roles, role_names, self.purposes, tree, has_ops
        )

    @cached_property
    def role_names(self) -> Coded:
        """The recorded name of the role of each allocation; empty without a role."""
        return role_names(self.categories, self.places.module_tree)

    @cached_property
    def made_by(self) -> MadeBy:
        """The op that made every allocation. An allocation that a module owns is listed under this module."""
        found = made_by(self.capture, self.allocations, self.places)
        return found._replace(module_name=owning_modules(self.places.module_tree, self.categories, found))

    @cached_property
    def births_in_other_threads_ns(self) -> IntArray:
        """When other threads allocated, in order: their ops are not recorded."""
        allocations = self.allocations
        return np.sort(allocations.birth_ns[allocations.thread != NONE])

    def op_at(self, event: int) -> int:
        """Return the op that was running at an event or, between ops, the one before; -1 before the first."""
        op = self._op_at.get(event)
        if op is None:  # computed once and kept: a peak may have 100,000 storages, and each calls this
            starts_ns, now_ns = self._op_starts_ns, self.curve.time_ns[event]
            op = self._op_at[event] = int(np.searchsorted(starts_ns, now_ns, side="right")) - 1
        return op

    def ops_at(self, events: IntArray | slice) -> IntArray:
        """Return the ops that were running at some events, as `op_at` does."""
        times_ns = self.curve.time_ns[events]
        ops: IntArray = np.searchsorted(self._op_starts_ns, times_ns, side="right").astype(np.int32)
        return ops - 1

    @property
    def _op_starts_ns(self) -> IntArray:
        return self.capture.tables["ops"]["start_ns"]

    @property
    def op_at_peak(self) -> int:
        """The op of the peak's event."""
        return self.op_at(self.curve.peak_event)

    def alive_at(self, event: int) -> NDArray[np.bool_]:
        """Return which allocations count and are alive just after an event."""
        return self.are_alive_at(slice(None), event)

    def are_alive_at(self, rows: IntArray | slice, event: int) -> NDArray[np.bool_]:
        """Return which of some allocations count and are alive just after an event."""
        allocations = self.allocations
        birth, death = allocations.birth_event[rows], allocations.death_event[rows]
        alive: NDArray[np.bool_] = (
            allocations.counted[rows] & (birth <= event) & ((death == NONE) | (death > event))
        )
        return alive

    def op_name(self, op: int) -> str:
        """Return the name of an op."""
        return str(self.strings[self.capture.tables["ops"]["name"][op]])

    def op_line(self, op: int) -> str:
        """Return `file:line` of the code that called an op, empty if unknown."""
        return str(self.places.lines(self.capture.tables["ops"]["stack"][op]))

    def own_line(self, op: int) -> str:
        """Return `file:line` of the program's own code that led to an op, empty if there is none."""
        return str(self.places.own_lines(self.capture.tables["ops"]["stack"][op]))

    def op_phase(self, op: int) -> int:
        """Return the phase of an op, as an index into PHASES."""
        return int(self.capture.tables["ops"]["phase"][op])

    def since_start(self, time_ns: IntArray) -> IntArray:
        """Return unix times as nanoseconds since the block was entered. Earlier times become 0; -1 stays -1."""
        start_ns = int(self.capture.meta.get("start_ns", 0))
        since: IntArray = time_ns - start_ns
        np.maximum(since, 0, out=since)
        since[time_ns == NONE] = NONE
        return since
