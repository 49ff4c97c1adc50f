"""What the samples of one block share: what they know from each other, and the rows that they append."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.capture.paths import PathTables
from memwatch.record.holders.schedule import SamplingSchedule
from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.saved.packer import Packer
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.storages import Storages
    from memwatch.record.tables.strings import Strings

_SAMPLES_BETWEEN_SEARCHES: Final = 4
_GROWTH_BETWEEN_SEARCHES: Final = 3


class Told(NamedTuple):
    """A path that a deep search or gc found: it is told again for as long as the call runs from which it starts.

    Attributes:
        path: number of the path.
        function: file and name of the function whose call it starts from; None where it starts elsewhere.
        on_stack: whether it was a value of an evaluation stack: it is so no more once a variable has it.
    """

    path: int
    function: tuple[str, str] | None
    on_stack: bool = False


class SamplingState:
    """What one sample leaves for the next.

    Attributes:
        storages: the storages that are alive.
        saved: the tensors that autograd saved.
        context: what the program is doing.
        rows: rows of `holders`.
        edges: rows of `edges`.
        vertices: rows of `vertices`.
        paths: gives retention paths their numbers.
        schedule: when samples are taken, and what they cost.
        first_number: number of the first storage that the block made.
        cut_count: samples that came to a search's limit: they may have missed a holder.
        told: paths of storages that only a deep search or gc could explain: neither is asked twice.
        unnamed: storages that the last sample found no holder of.
        barren: `id` of modules' functions and classes behind which no tensor was found.
    """

    def __init__(
        self,
        storages: Storages,
        saved: Packer,
        context: Context,
        strings: Strings,
        op_counter: OpCounter,
    ) -> None:
        self.storages, self.saved, self.context = storages, saved, context
        self.rows, self.edges, self.vertices = Rows(), Rows(), Rows()
        self.paths = PathTables(strings, self.edges, self.vertices)
        self.schedule = SamplingSchedule(storages.live_bytes)
        self.base_bytes = storages.live_bytes
        self.first_number = storages.entry_count = storages.count
        self.cut_count = 0
        self.told: dict[int, list[Told]] = {}
        self.unnamed: set[int] = set()
        self.barren: set[int] = set()
        self.op_counter = op_counter
        self._count_at_search = self._searched_bytes = 0
        self._unnamed_bytes = (0, 0)

    @property
    def increase_bytes(self) -> int:
        """The live bytes that the block made."""
        storages = self.storages
        return storages.live_bytes + storages.entry_gone_bytes - self.base_bytes

    def append(self, storage: int, path: int) -> None:
        """Append a row for a holder of a storage."""
        self.rows += (self.schedule.count, self.op_counter[0], storage, path)

    def is_time_to_search_again(self) -> bool:
        """Return True when values that had no variable at the last deep search should be searched for again.

        A value on the evaluation stack usually gets a variable a moment later.
        """
        is_due = self._count_at_search + _SAMPLES_BETWEEN_SEARCHES <= self.schedule.count
        if is_due and not self.unnamed.isdisjoint(self.told):
            self._count_at_search = self.schedule.count
            return True
        return False

    def note_unnamed(self, nbytes: int) -> None:
        """Note how much of what lives had no holder in this sample, whatever it is; 0 where that is not much."""
        self._unnamed_bytes = self._unnamed_bytes[1], nbytes

    def is_much_unnamed_again(self) -> bool:
        """Return True when much had no holder in two samples, though perhaps no storage twice.

        A cache that is replaced in each pass is so. The next such search waits until it has grown several times.
        """
        context, nbytes = self.context, min(self._unnamed_bytes)
        is_worth_it = nbytes > self._searched_bytes * _GROWTH_BETWEEN_SEARCHES
        if not is_worth_it or context.in_backward or context.optimizing:
            return False
        self._searched_bytes = nbytes
        return True
