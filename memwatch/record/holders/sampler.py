"""Find the holders of memory: take samples of the running program's references.

A *sample* is one search for the holders of everything large that is live at that moment, in the middle of an op.
`schedule` decides when one is taken, `sample` takes it, `heap` has the searches.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING

import torch

from memwatch._torch.modes import disable_torch_function
from memwatch.heap.pause import pause_gc, resume_gc
from memwatch.heap.search_roots import forget_calls
from memwatch.record.clock import ticks
from memwatch.record.harmless import uninterrupted
from memwatch.record.holders.peek import peek
from memwatch.record.holders.sample import Sample
from memwatch.record.holders.state import SamplingState
from memwatch.record.holders.torch_runs import TorchRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.context import Context
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Rows, Strings
    from memwatch.record.tables.storages import Storages


class HolderSampler:
    """Take samples at new peaks, and append rows of `holders` for the storages that they find.

    Args:
        storages: the storages that are alive.
        saved: the tensors that autograd saved.
        context: the running modules, calls and steps of the program.
        strings: numbers for texts.
        op_counter: how many ops have started.
        highs: returns the most live bytes of each device so far, and when in ticks, as the allocator reported.
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
    ) -> None:
        self._state = SamplingState(storages, saved, context, strings, op_counter)
        self._torch_runs = TorchRuns(self._state, highs)
        self._is_sampling = self._is_marked = False
        self._paced_by: weakref.ref[object] | None = None
        self._root: weakref.ref[object] | None = None
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
        """The samples that came to a search's limit: they may have missed a holder."""
        return self._state.cut_count

    @property
    def cost_ticks(self) -> int:
        """The cost of the samples."""
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
        """Take a further call of the first outermost module for the start of an iteration, where no step tells."""
        if self._root is None:
            self._root, self._first_call_op = weakref.ref(module), self._state.op_counter[0]
        elif not self._is_marked and self._paced_by is None and self._root() is module:
            self._iteration_starts(self._first_call_op)
            self._first_call_op = None

    def _iteration_starts(self, last_from: int | None = None) -> None:
        """Plan a sample at the op, in the new iteration, at which the last one had its peak on a device.

        Args:
            last_from: the op with which the last one began, where that was not known when it did.
        """
        for device, schedule in self._state.schedules.items():
            schedule.iteration_starts(self._state.op_counter[0], last_from)
            self._watch(device)

    def born(self, device: int, nbytes: int, high_bytes: int) -> None:
        """Take a sample, if the birth of a storage of `nbytes` on a device makes it worthwhile.

        The decision uses the most live bytes during the op, because the peak may lie within a kernel.
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
            and self._is_plain
        ):
            self.peek(device)
            self._watch(device)
        elif schedule.is_new_peak and state.costs.may_ask_for_roles:
            with self._amid_op():
                state.look_at_roles(sys._getframe(1), state.least_bytes(device))
            self._watch(device)
        elif schedule.is_too_dear:
            self._watch(device)

    def torch_run_begins(self) -> None:
        """Note that from now on only torch's own code runs."""
        self._torch_runs.begins()

    def torch_run_ends(self) -> None:
        """Take a sample before code of the program runs again, if a device had a new peak since that was so."""
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
    def _is_plain(self) -> bool:
        """Whether neither a backward nor the step of an optimizer runs, whose ends are sampled."""
        return not (self._state.context.in_backward or self._state.context.optimizing)

    def peek(self, device: int) -> None:
        """Verify the known holders of large storages on a device now."""
        start = ticks()
        try:
            with self._amid_op():
                peek(self._state, device, sys._getframe(1))
        finally:
            self._state.costs.peeked(ticks() - start)

    def sample(self, device: int) -> None:
        """Find the holders of large storages on a device now."""
        start = ticks()
        try:
            with self._amid_op():
                Sample(self._state, device).take(sys._getframe(1))
        finally:
            self._state.costs.sampled(ticks() - start)

    @contextlib.contextmanager
    def _amid_op(self) -> Iterator[None]:
        """Search the program's objects in the middle of an op. No code of the program runs.

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
