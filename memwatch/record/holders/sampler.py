"""Who holds what: takes samples of the running program's references.

A *sample* is one search for the holders of everything large that is live at that moment, in the middle of an op.
`schedule` decides when one is taken, `sample` takes it, `heap` has the searches.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

from memwatch._torch.overrides import disable_torch_function
from memwatch.heap.pause import pause_gc, resume_gc
from memwatch.record.clock import ticks
from memwatch.record.holders.sample import Sample
from memwatch.record.holders.state import SamplingState
from memwatch.record.tables.storages import NEVER, Storages

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.saved.packer import Packer
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.rows import Rows
    from memwatch.record.tables.strings import Strings


class HolderSampler:
    """Take samples at new peaks, and append rows of `holders` for the storages that they find."""

    def __init__(
        self,
        storages: Storages,
        saved: Packer,
        context: Context,
        strings: Strings,
        op_counter: OpCounter,
    ) -> None:
        self._state = SamplingState(storages, saved, context, strings, op_counter)
        self._schedule = self._state.schedule
        self._is_sampling = self._is_marked = False
        self._paced_by: weakref.ref[object] | None = None

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by table; those that refer to rows of another table stand before it."""
        state = self._state
        return {"holders": state.rows, "edges": state.edges, "vertices": state.vertices}

    @property
    def count(self) -> int:
        """The samples taken so far."""
        return self._schedule.count

    @property
    def cut_count(self) -> int:
        """The samples that came to a search's limit: they may have missed a holder."""
        return self._state.cut_count

    @property
    def cost_ticks(self) -> int:
        """What the samples took."""
        return self._schedule.cost_ticks

    def start(self) -> None:
        """Begin to sample at new peaks."""
        self._state.storages.watch(self._schedule.worth_from_bytes(), self.born)

    def stop(self) -> None:
        """Take no more samples."""
        self._state.storages.watch(NEVER, self.born)

    def iteration_marked(self) -> None:
        """Take a mark of the program for the start of an iteration; from then on nothing else is taken for one."""
        self._is_marked = True
        self._iteration_starts()

    def step_ended(self, optimizer: object) -> None:
        """Take the end of the first optimizer's step for that of an iteration, where the program marks none."""
        if self._paced_by is None:
            self._paced_by = weakref.ref(optimizer)
        if not self._is_marked and self._paced_by() is optimizer:
            self._iteration_starts()

    def _iteration_starts(self) -> None:
        """Plan a sample at the op, in the new iteration, at which the last one had its peak."""
        self._schedule.iteration_starts(self._state.op_counter[0])
        self.start()

    def born(self, nbytes: int) -> None:
        """Take a sample, if the birth of a storage of `nbytes` makes it worth while."""
        state = self._state
        live_bytes = state.base_bytes + state.increase_bytes
        if not self._is_sampling and self._schedule.is_worth_it(nbytes, live_bytes, state.op_counter[0]):
            self.start()
            self.sample()

    def sample(self) -> None:
        """Find the holders now."""
        self._is_sampling = True
        start = ticks()
        pause_gc()  # a collection now would run the program's finalizers inside an op
        try:
            with disable_torch_function():
                Sample(self._state).take(sys._getframe(1))
        finally:
            resume_gc()
            self._schedule.sampled(ticks() - start)
            self._is_sampling = False
