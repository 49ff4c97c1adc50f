"""Who holds what: takes samples of the running program's references, and keeps the rows that they append.

A *sample* is one search for the holders of everything large that is live at that moment, in the middle of an op.
`schedule` decides when one is taken, `sample` takes it, `heap` has the searches.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.paths import PathTables
from memwatch.record.clock import ticks
from memwatch.record.holders.sample import Sample
from memwatch.record.holders.schedule import SamplingSchedule
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import NEVER, Storages

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.python.saved import SavedTensorRecorder
    from memwatch.record.tables.strings import Strings

_SAMPLES_BETWEEN_SEARCHES: Final = 4


class HolderSampler:
    """Take samples at new peaks, and append rows of `holders` for the storages that they find.

    Attributes:
        rows: rows of `holders`.
        edges: rows of `edges`.
        vertices: rows of `vertices`.
        cut_count: samples that came to a search's limit: they may have missed a holder.
        paths: gives retention paths their numbers.
        told: path numbers of storages that only a deep search or gc could explain: neither is asked twice.
        unnamed: storages that the last sample found no holder of.
        barren: `id` of modules' functions and classes behind which no tensor was found.
    """

    def __init__(
        self,
        storages: Storages,
        saved: SavedTensorRecorder,
        context: Context,
        strings: Strings,
        ops_started: list[int],
    ) -> None:
        self.rows, self.edges, self.vertices = Rows(), Rows(), Rows()
        self.cut_count = 0
        self.paths = PathTables(strings, self.edges, self.vertices)
        self.told: dict[int, list[int]] = {}
        self.unnamed: set[int] = set()
        self.barren: set[int] = set()
        self.schedule = SamplingSchedule(storages.live_bytes)
        self.storages = storages
        self.saved = saved
        self.context = context
        self._ops_started = ops_started
        self._base_bytes = storages.live_bytes
        self.first_number = storages.entry_count = storages.count
        self._is_sampling = False
        self._count_at_search = 0

    @property
    def count(self) -> int:
        """The samples taken so far."""
        return self.schedule.count

    @property
    def cost_ticks(self) -> int:
        """What they took."""
        return self.schedule.cost_ticks

    @property
    def increase_bytes(self) -> int:
        """The live bytes that the block made."""
        storages = self.storages
        return storages.live_bytes + storages.entry_gone_bytes - self._base_bytes

    def start(self) -> None:
        """Begin to sample at new peaks."""
        self.storages.watch(self.schedule.worth_from_bytes(), self.born)

    def stop(self) -> None:
        """Take no more samples."""
        self.storages.watch(NEVER, self.born)

    def iteration_starts(self) -> None:
        """Plan a sample at the op, in the new iteration, at which the last one had its peak."""
        self.schedule.iteration_starts(self._ops_started[0])
        self.start()

    def born(self, nbytes: int) -> None:
        """Take a sample, if the birth of a storage of `nbytes` makes it worth while."""
        live_bytes = self._base_bytes + self.increase_bytes
        if not self._is_sampling and self.schedule.is_worth_it(nbytes, live_bytes, self._ops_started[0]):
            self.start()
            self.sample()

    def append(self, storage: int, path: int) -> None:
        """Append a row for a holder of a storage."""
        self.rows += (self.count, self._ops_started[0], storage, path)

    def is_time_to_search_again(self) -> bool:
        """Return True when values that had no variable at the last deep search should be searched for again.

        A value on the evaluation stack usually gets a variable a moment later.
        """
        is_due = self._count_at_search + _SAMPLES_BETWEEN_SEARCHES <= self.count
        if is_due and not self.unnamed.isdisjoint(self.told):
            self._count_at_search = self.count
            return True
        return False

    def sample(self) -> None:
        """Find the holders now."""
        self._is_sampling = True
        start = ticks()
        enabled = gc.isenabled()
        gc.disable()  # a collection now would run the program's finalizers inside an op
        try:
            with disable_torch_function():
                Sample(self).take(sys._getframe(1))
        finally:
            if enabled:
                gc.enable()
            self.schedule.sampled(ticks() - start)
            self._is_sampling = False
