"""The state that the samples of one block share: earlier results, and the rows that they append."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.capture.paths import PathTables
from memwatch.heap.known_ways import KnownWays
from memwatch.heap.reference_search import KnownClasses
from memwatch.heap.roots import RootKind
from memwatch.record.clock import ticks
from memwatch.record.holders.schedule import SamplingCosts, SamplingSchedule
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import WatchedStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from memwatch.heap.roots import Root
    from memwatch.kinds.edges import Vertex
    from memwatch.record.context import Context
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Strings
    from memwatch.record.tables.storages import Storages

_SMALL_RATIO: Final = 0.001
"""A share of the peak increase. Samples ignore smaller storages. A guess."""
_LARGE_AT_ENTRY_RATIO: Final = 0.02
"""A share of the live bytes at entry. Samples explain only larger storages, at most 50 of them. A guess."""
_SAMPLES_BETWEEN_SEARCHES: Final = 4
"""Samples between two deep searches. A guess."""
_GROWTH_BETWEEN_SEARCHES: Final = 3
"""A factor. A search for unnamed bytes waits until they have grown so much. A guess."""


class Told(NamedTuple):
    """A path that a deep search or gc found. It is recorded again as long as its first call runs.

    Attributes:
        path: number of the path.
        function: file and name of the first call's function; None for a path that starts elsewhere.
        on_stack: whether only an evaluation stack or C++ held the storage. This ends when a variable holds it.
        in_container: whether it was in a container, and only young objects were searched.
    """

    path: int
    function: tuple[str, str] | None
    on_stack: bool = False
    in_container: bool = False


def function_of(root: Root) -> tuple[str, str] | None:
    """Return the file and name of the function that a root is a call of, in this thread; None for other roots."""
    call = root.entries[0].owner if root.kind is RootKind.FRAME else None
    if call is None or call.file is None or call.thread:
        return None
    return call.file, (call.inner or call).name


class SamplingState:
    """The state that one sample leaves for the next.

    Attributes:
        storages: the storages that are alive.
        saved: the tensors that autograd saved.
        context: the running modules, calls and steps of the program.
        rows: rows of `holders`.
        edges: rows of `edges`.
        vertices: rows of `vertices`.
        paths: numbers the retention paths.
        schedules: the schedule of each device, by the string id of its name.
        costs: the cost of the samples.
        first_number: number of the first storage that the block made.
        cut_count: samples that reached a search's limit, so they may have missed a holder.
        told: paths of storages that only a deep search or gc could explain; they are not searched again.
        unnamed: storages without a holder in the last sample, by device.
        ways: paths to the storages that deep searches found.
        barren: `id` of modules' functions and classes that lead to no tensor.
        known_classes: the classes of the objects that searches met.
        path_of_variable: calls at their lines, and the paths to their variables and to items of those, by the calls'
            `id`, the variable's kind and name, and the item's place.
        shared: addresses of the storages that only C++ has, by number: a DLPack capsule may own the memory.
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
        self.costs = SamplingCosts()
        self.schedules = {
            device: SamplingSchedule(storages.gross_bytes(device), self.costs) for device in storages.devices
        }
        self.first_number = storages.entry_count = storages.count
        self.cut_count = 0
        self.told: dict[int, list[Told]] = {}
        self.unnamed: dict[int, set[int]] = {}
        self.ways = KnownWays()
        self.barren: set[int] = set()
        self.known_classes = KnownClasses()
        self.path_of_variable: dict[tuple[Any, ...], tuple[Vertex, int]] = {}
        self.shared: dict[int, range] = {}
        self.op_counter = op_counter
        self._count_at_search = 0
        self._searched_bytes: dict[int, int] = {}
        self._unnamed_bytes: dict[int, tuple[int, int]] = {}
        self._large_at_entry = self._find_large()

    def schedule_of(self, device: int) -> SamplingSchedule:
        """Return the schedule of a device. If the device is new, nothing was alive on it at entry."""
        if device not in self.schedules:
            self.schedules[device] = SamplingSchedule(0, self.costs)
        return self.schedules[device]

    def increase_bytes(self, device: int) -> int:
        """Return the live bytes on a device that the block made."""
        return self.storages.gross_bytes(device) - self.schedule_of(device).base_bytes

    def least_bytes(self, device: int) -> int:
        """Return the smallest size that samples examine."""
        return max(int(self.increase_bytes(device) * _SMALL_RATIO), 1)

    def to_explain(self, device: int) -> Iterator[WatchedStorage]:
        """Yield the storages on a device that need a holder: the block's own storages, and large older storages.

        Storages of a running backward are autograd's own until it ends. A search through the program's objects for
        their holders meets many objects and finds nothing.
        """
        context = self.context
        end = context.gradients.first_made if context.in_backward else self.storages.count
        for alive in (*self._at_entry(device), *self.storages.newest(self.first_number)):
            if alive.number >= end:
                return
            if alive.__class__ is WatchedStorage and alive.device == device:
                yield alive

    def _at_entry(self, device: int) -> list[WatchedStorage]:
        """Return the large storages on a device that were there at entry and live still, as a data set."""
        live = self.storages.live
        return [
            alive for alive in self._large_at_entry if alive.device == device and live.get(alive.key) is alive
        ]

    def _find_large(self) -> list[WatchedStorage]:
        """Return the large storages among the living storages. At entry, all of them are older than the block."""
        least_bytes = {
            device: max(schedule.base_bytes * _LARGE_AT_ENTRY_RATIO, 1)
            for device, schedule in self.schedules.items()
        }
        return [
            alive
            for alive in list(self.storages.live.values())
            if alive.__class__ is WatchedStorage and alive.nbytes >= least_bytes[alive.device]
        ]

    def look_at_roles(self, frame: FrameType | None, least_bytes: int) -> None:
        """End the roles that are over, if there is time. Storages without a role are searched for."""
        known_count = len(self.storages.live) + len(self.context.owners.registry.known)
        if self.costs.may_look_at_roles(known_count):
            start = ticks()
            is_over = self.costs.is_at_end_of_run
            self.context.role_ends.look(frame, least_bytes=least_bytes, in_op=True, is_over=is_over)
            self.costs.roles_looked_at(known_count, ticks() - start)

    def append(self, storage: int, path: int) -> None:
        """Append a row for a holder of a storage."""
        self.rows += (self.costs.count, self.op_counter[0], storage, path)

    def append_all(self, storages: list[int], path: int) -> None:
        """Append a row for one holder of many storages."""
        sample, op = repeat(self.costs.count), repeat(self.op_counter[0])
        self.rows.extend(chain.from_iterable(zip(sample, op, storages, repeat(path), strict=False)))

    def is_time_to_search_again(self, device: int) -> bool:
        """Return True when values that had no variable at the last deep search should be searched for again.

        A value on the evaluation stack usually gets a variable a moment later.
        """
        is_due = self._count_at_search + _SAMPLES_BETWEEN_SEARCHES <= self.costs.count
        if is_due and not self.unnamed[device].isdisjoint(self.told):
            self._count_at_search = self.costs.count
            return True
        return False

    def note_unnamed(self, device: int, nbytes: int) -> None:
        """Note the live bytes without a holder in this sample; 0 if they are few."""
        self._unnamed_bytes[device] = self._unnamed_bytes.get(device, (0, 0))[1], nbytes

    def is_much_unnamed_again(self, device: int) -> bool:
        """Return True if two samples of a device had many bytes without a holder, perhaps of different storages.

        A cache that each pass replaces is an example. The next such search waits until these bytes have multiplied.
        """
        context, nbytes = self.context, min(self._unnamed_bytes[device])
        is_worth_it = nbytes > self._searched_bytes.get(device, 0) * _GROWTH_BETWEEN_SEARCHES
        if not is_worth_it or context.in_backward or context.optimizing:
            return False
        self._searched_bytes[device] = nbytes
        return True
