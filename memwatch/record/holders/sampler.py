"""Find the holders of memory: take samples of the running program's references.

A *sample* is one search for the holders of all large storages that are alive, in the middle of an op.
`SamplingSchedule` decides at which ops memwatch takes a sample. The module `sample` takes it, with the searches of
`memwatch.heap`.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Final

import torch

from memwatch._torch.modes import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.gc_pause import pause_gc, resume_gc
from memwatch.heap.roots import calls_with, forget_calls
from memwatch.record.clock import ticks
from memwatch.record.harmless import uninterrupted
from memwatch.record.holders.sample import Sample
from memwatch.record.holders.state import SamplingState
from memwatch.record.tables.parts import tensor_bytes
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import WatchedStorage, address_of
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from memwatch.kinds.edges import Edge
    from memwatch.record.context import Context
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Strings
    from memwatch.record.tables.storages import Storages

# A run of torch's own code is a backward, or the step of an optimizer. No code of the program runs meanwhile.
#
# The variables of the program do not change during such a run. So one sample at its end is as good as a sample at each
# op, and is enough for all peaks in the run. When backward runs a checkpointed region again, the run ends, because the
# region is code of the program.
_FREE_SAMPLES: Final = 12
"""Samples at ends of runs that are taken whatever they cost: two steps of a model with four checkpointed blocks."""
_FREE_GRADIENTS: Final = 2_000
"""Leaves whose `.grad` is read at ends of runs whatever it costs: about 2 ms."""
_GRADIENTS_PER_OP: Final = 0.25
"""Further leaves for each op of the program. Reading one takes 1 us, and an op takes at least 10."""


class TorchRuns:
    """The present run of torch's own code, and rows for the past runs at whose ends samples were taken.

    Args:
        state: the state that samples share.
        highs: returns, for each device, the most live bytes so far and the time in ticks at which they were live. Empty
            without the allocator's events.

    Attributes:
        rows: rows of `torch_runs`.
    """

    def __init__(self, state: SamplingState, highs: Callable[[], dict[int, tuple[int, int]]]) -> None:
        self.rows = Rows()
        self._state, self._highs = state, highs
        self._start: tuple[int, int, int] | None = None
        self._sampled_high: dict[int, int] = {}
        self._free_count = self._gradient_count = 0

    def begins(self) -> None:
        """Note that from now on only torch's own code runs."""
        self._start = self._state.op_counter[0], ticks(), self._state.costs.count

    def devices_with_new_peak(self) -> list[int]:
        """Return the devices that had a new peak in the run that ends now. Empty if a sample is not affordable."""
        if self._start is None:
            return []
        start_op, start_ticks, _ = self._start
        if self._state.op_counter[0] == start_op:
            return []
        highs, found = self._highs(), []
        for device, schedule in self._state.schedules.items():
            if device in highs:
                high_bytes, at_ticks = highs[device]
                is_new = at_ticks >= start_ticks and high_bytes > self._sampled_high.get(device, 0)
                # the allocator subtracts what the block freed of older memory
                own_bytes = high_bytes + self._state.storages.entry_gone_bytes(device)
                is_new = is_new and own_bytes >= schedule.from_bytes
            else:  # without the allocator's events, only the births that the schedule examined are known
                high_bytes, is_new = 0, schedule.peak_op > start_op
            if is_new:
                found.append((device, high_bytes))
        if not found or not self._may_sample():
            return []
        self._sampled_high.update(found)
        return [device for device, _ in found]

    def may_note_gradients(self, count: int) -> bool:
        """Return True if there is time to note the gradients of some leaves at the end of this run.

        The peak may come in a later run of the same backward. The gradients of this run must be known by then.

        Args:
            count: how many leaves the running backwards may give gradients.
        """
        self._gradient_count += count
        return self._gradient_count <= max(_FREE_GRADIENTS, self._state.op_counter[0] * _GRADIENTS_PER_OP)

    def _may_sample(self) -> bool:
        if self._free_count < _FREE_SAMPLES:
            self._free_count += 1
            return True
        return self._state.costs.is_affordable()

    def ends(self) -> None:
        """Note that the run is over. Append its row if a sample was taken since it began."""
        if self._start is None:
            return
        start_op, _, count = self._start
        self._start = None
        if self._state.costs.count > count:
            self.rows += (start_op, self._state.op_counter[0])


# A peek verifies the known holders at a new peak, in a hundredth of the time of a sample.
#
# A program without backward, such as the generation of tokens with a cache, may have a higher peak in every pass. Each
# pass puts new tensors into the same places. A peek reads the places where samples found tensors, and the tables of the
# modules, in the middle of the op. It does not search. So a tensor that a peek does not find may still have a holder.
def peek(state: SamplingState, device: int, frame: FrameType | None) -> None:
    """Append a row for each large storage of a device that is in a known place now.

    Args:
        state: the state that samples share.
        device: string id of the device's name.
        frame: the innermost call.
    """
    state.context.role_ends.verify_modules(frame)
    least_bytes, live = state.least_bytes(device), state.storages.live
    recorded: set[int] = set()
    views: dict[int, tuple[Edge, ...]] = {}
    met: set[tuple[int, tuple[tuple[int, object], ...]]] = set()
    for root in calls_with(frame, state.ways.names_in):
        for tensor, edges in state.ways.tensors(root, met):
            with suppress(RuntimeError, NotImplementedError, AttributeError):  # torch cannot read its storage
                alive = live.get(address_of(tensor))
                if (
                    alive.__class__ is not WatchedStorage
                    or alive.device != device
                    or alive.nbytes < least_bytes
                ):
                    continue
                if tensor_bytes(tensor) < alive.nbytes:
                    views.setdefault(alive.number, edges)
                elif alive.number not in recorded:
                    recorded.add(alive.number)
                    state.rows += (NONE, state.op_counter[0], alive.number, state.paths(edges))
    for number, edges in views.items():
        if number not in recorded:
            state.rows += (NONE, state.op_counter[0], number, state.paths(edges))


class HolderSampler:
    """Take samples at new peaks, and append rows of `holders` for the storages that they find.

    Args:
        storages: the storages that are alive.
        saved: the tensors that autograd saved.
        context: the running modules, calls and steps of the program.
        strings: numbers for texts.
        op_counter: how many ops have started.
        highs: see `TorchRuns`.
        sampled: called after each sample.
        from_bytes: no sample is taken on a device while the block's own live bytes there are below this.
    """

    def __init__(
        self,
        storages: Storages,
        saved: Packer,
        context: Context,
        strings: Strings,
        op_counter: OpCounter,
        *,
        highs: Callable[[], dict[int, tuple[int, int]]],
        sampled: Callable[[], None],
        from_bytes: int = 0,
    ) -> None:
        self._sampled = sampled
        self._state = SamplingState(storages, saved, context, strings, op_counter, from_bytes=from_bytes)
        self._torch_runs = TorchRuns(self._state, highs)
        self._is_sampling = self._is_marked = False
        self._paced_by: weakref.ref[object] | None = None  # the first optimizer that stepped
        self._first_root: weakref.ref[object] | None = None
        self._first_call_op: int | None = None

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by table. A table comes before the tables that its rows refer to."""
        state = self._state
        runs = {"torch_runs": self._torch_runs.rows}
        return {**runs, "holders": state.rows, "edges": state.edges, "vertices": state.vertices}

    @property
    def count(self) -> int:
        """The samples taken so far."""
        return self._state.costs.count

    @property
    def cut_count(self) -> int:
        """The samples whose search reached its limit, so that they may have missed a holder."""
        return self._state.cut_count

    @property
    def cost_ticks(self) -> int:
        """The time that the samples took."""
        return self._state.costs.cost_ticks

    def start(self) -> None:
        """Begin to sample at new peaks."""
        self._state.storages.report_births_to(self.born)
        for device in self._state.schedules:
            self._watch(device)

    def stop(self) -> None:
        """Take no more samples."""
        self._state.storages.report_births_to(None)
        forget_calls()

    def _watch(self, device: int) -> None:
        state = self._state
        schedule, costs = state.schedule_of(device), state.costs
        quiet = (schedule.quiet_bytes(), costs.affordable_at_ticks)
        state.storages.watch(device, schedule.worth_from_bytes(), *quiet)

    def iteration_marked(self) -> None:
        """Start a new iteration because the program marked one.

        After the first mark, ignore all other signs of an iteration.
        """
        self._is_marked = True
        self._iteration_starts()

    def step_ended(self, optimizer: object) -> None:
        """End an iteration with the step of the first optimizer, if the program itself marks no iterations."""
        if self._paced_by is None:
            self._paced_by = weakref.ref(optimizer)
        if not self._is_marked and self._paced_by() is optimizer:
            self._iteration_starts()

    def root_called(self, module: object) -> None:
        """Start a new iteration, if neither the program nor an optimizer marks iterations.

        The first module that runs outside all other modules marks them: each of its calls after the first starts a new
        iteration.
        """
        if self._first_root is None:
            self._first_root, self._first_call_op = weakref.ref(module), self._state.op_counter[0]
        elif not self._is_marked and self._paced_by is None and self._first_root() is module:
            self._iteration_starts(self._first_call_op)
            self._first_call_op = None

    def _iteration_starts(self, last_from: int | None = None) -> None:
        """Start an iteration in the schedule of each device.

        Args:
            last_from: the op at which the last iteration began, if that was not known then.
        """
        for device, schedule in self._state.schedules.items():
            schedule.iteration_starts(self._state.op_counter[0], last_from)
            self._watch(device)

    def born(self, device: int, nbytes: int, high_bytes: int) -> None:
        """Take a sample at the birth of a storage, if it is worthwhile; or a peek, or only a sample of the roles.

        Args:
            device: string id of the device's name.
            nbytes: size of the storage.
            high_bytes: the most live bytes during the op, because the peak may lie within a kernel.
        """
        state = self._state
        schedule = state.schedule_of(device)
        if self._is_sampling:
            return
        if schedule.is_worth_it(nbytes, high_bytes, state.op_counter[0]):
            self.sample(device)
            self._watch(device)
        elif (
            schedule.is_worth_a_peek
            and state.costs.may_peek
            and not torch.is_grad_enabled()
            and self._in_program_code
        ):
            self.peek(device)
            self._watch(device)
        elif schedule.is_new_peak and state.costs.may_ask_for_roles:
            with self._searching():
                state.look_at_roles(sys._getframe(1), state.least_bytes(device))
            self._watch(device)
        elif schedule.is_too_dear:
            self._watch(device)  # births are not examined until samples are affordable again

    def torch_run_begins(self) -> None:
        """Note that from now on only torch's own code runs."""
        self._torch_runs.begins()

    def torch_run_ends(self) -> None:
        """Take a sample for each device that had a new peak in this run. The program's code runs again after it."""
        if self._is_sampling:
            return
        context = self._state.context
        if context.in_backward and self._torch_runs.may_note_gradients(context.gradients.reached_count):
            context.gradients.note_between_ops()
        for device in self._torch_runs.devices_with_new_peak():
            self._state.costs.look_at_roles_for_free(at_end_of_run=True)
            self.sample(device)
            self._watch(device)
        self._torch_runs.ends()

    @property
    def _in_program_code(self) -> bool:
        """Whether neither a backward nor an optimizer's step runs. These get samples at their ends."""
        return not (self._state.context.in_backward or self._state.context.optimizing)

    def peek(self, device: int) -> None:
        """Verify the known holders of large storages on a device now."""
        start = ticks()
        try:
            with self._searching():
                peek(self._state, device, sys._getframe(1))
        finally:
            self._state.costs.peeked(ticks() - start)

    def sample(self, device: int) -> None:
        """Find the holders of large storages on a device now."""
        start = ticks()
        try:
            with self._searching():
                Sample(self._state, device).take(sys._getframe(1))
        finally:
            self._state.costs.sampled(ticks() - start)
        self._sampled()

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """Make a search of the program's objects safe in the middle of an op. No code of the program runs meanwhile.

        Signal handlers wait until the end, because they could change the objects during the search.
        """
        with uninterrupted():
            self._is_sampling = True
            pause = pause_gc()  # a collection now would run the program's finalizers inside an op
            try:
                with disable_torch_function():
                    yield
            finally:
                resume_gc(pause)
                self._is_sampling = False
