"""The state that the samples of one block share: their schedule, their cost, earlier results, and the rows."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.capture.paths import PathTables
from memwatch.heap.known_ways import KnownWays
from memwatch.heap.reference_search import KnownClasses
from memwatch.heap.roots import RootKind
from memwatch.record.clock import Clock, ticks
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
_CLIMB_RATIO: Final = 1.4
"""On the way up, the next sample comes when the increase has grown by this factor. A guess."""
_LOW_CLIMB_RATIO: Final = 2.0
"""The same factor while the increase is low, see `_LOW_RATIO`. A guess."""
_LOW_RATIO: Final = 0.05
"""A share of the live bytes at entry. A guess: an increase below it is small, and will most likely be exceeded."""
_NEAR_RATIO: Final = 0.9
"""A share of the highest increase so far. From there on, newly made bytes are worth a sample. A guess."""
_FRESH_RATIO: Final = 0.1
"""A share of the highest increase. The first such sample needs so many newly made bytes. A guess."""
_FRESH_GROWTH_RATIO: Final = 1.5
"""Each further sample of this kind needs this factor more. A guess."""
_MAX_AGAIN: Final = 12
"""Samples of this kind until the increase climbs again. A guess."""
_LEAST_RATIO: Final = 0.01
"""A share of the live bytes at entry. It counts as the highest increase before the first sample. A guess."""
_LEAST_BYTES: Final = 64 * 1024
"""Bytes. The same, if it is less. A guess."""
_SAMPLES_TIME_RATIO: Final = 0.04
"""The share of the block's time that all samples may take. A guess; reports/overhead.md has the cost."""
_HEAP_SCANS_TIME_RATIO: Final = 0.02
"""The share of the block's time that searches through all objects may take. A guess."""
_FREE_FRESH_SAMPLES: Final = 12
"""Samples of newly made bytes that are taken whatever they cost. A guess."""
_FREE_DUE_SAMPLES: Final = 2
"""Samples at the peak of the last iteration that are taken whatever they cost. A guess."""
_SAME_BETWEEN_SAMPLES: Final = 16
"""Iterations with the same peak, as in a steady training, between two samples. A guess."""
_FREE_HEAP_SCANS: Final = 1
"""Searches through all objects that are allowed whatever they cost. A guess."""
_ROLE_LOOKS_RATIO: Final = 0.1
"""The share of the samples' time that samples of the roles may take. A guess."""
_FREE_ROLE_LOOKS: Final = 4
"""Samples of the roles that are allowed whatever they cost. A guess."""
_FREE_OF_ROLE_LOOKS: Final = 10_000
"""Storages and modules that all free samples of the roles may visit together, which takes 20 to 30 ms.

Those at the ends of runs of torch's own code may visit as many again.

With more objects, roles are sampled when this is a small share of the time of all samples, and at the end of the
block. The entry has just noted the roles, so an early sample would find nothing new.
"""
_NS_PER_ROLE: Final = 2_000
"""Nanoseconds per storage or module, until a sample was timed. Measured: 600 for a tensor, 2,600 for a layer's."""
_FREE_PEEKS: Final = 64
"""Peeks that are taken whatever they cost: for a pass and 40 tokens of a small model. One takes about 1 ms."""
_PEEKS_TIME_RATIO: Final = 0.02
"""The share of the block's time that all other peeks may take. A guess."""
_FREE_OF_SMALL_PROGRAMS: Final = 1_000
"""Objects that all samples together may visit at any time, so that a small program's result does not depend on time.

A guess.
"""


class Told(NamedTuple):
    """A path to a storage that a deep search or gc found. While `function` runs, later samples record it again.

    Attributes:
        path: number of the path.
        function: file and name of the function whose call the path starts at. None for a path that starts elsewhere,
            which is always recorded again.
        on_stack: whether only an evaluation stack or C++ held the storage. When a sample finds a variable that holds
            it, this path is dropped.
        in_container: whether gc found the storage in a container without an owner. One more search may find the owner.
    """

    path: int
    function: tuple[str, str] | None
    on_stack: bool = False
    in_container: bool = False


def function_of(root: Root) -> tuple[str, str] | None:
    """Return the file and name of the function that a root is a call of. None for other roots and other threads."""
    call = root.entries[0].owner if root.kind is RootKind.FRAME else None
    if call is None or call.file is None or call.thread:
        return None
    return call.file, (call.inner or call).name


class SamplingState:
    """The state that the samples of a block share.

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
        told: the paths that a deep search or gc found, by the number of the storage. Empty if they found none. For
            these storages gc is used again only if they lie in a container.
        unnamed: by device, the numbers of the storages without a holder after the last near search.
        ways: the places in which searches found tensors. They can be read again without a search.
        barren: `id` of functions and classes in modules that led earlier searches to no tensor.
        known_classes: the classes of the objects that searches met.
        path_of_variable: a call and the path to one of its variables, or to an item of a variable. The key is the `id`
            of the call's vertex, the kind and name of the variable, and the item's position. The call is kept so that
            its `id` is not used again.
        shared: the memory addresses of the storages that only C++ held, by number. A DLPack capsule may keep them.
    """

    def __init__(
        self,
        storages: Storages,
        saved: Packer,
        context: Context,
        strings: Strings,
        op_counter: OpCounter,
        *,
        from_bytes: int,
    ) -> None:
        self.storages, self.saved, self.context = storages, saved, context
        self.rows, self.edges, self.vertices = Rows(), Rows(), Rows()
        self.paths = PathTables(strings, self.edges, self.vertices)
        self.costs = SamplingCosts()
        self.schedules = {
            device: SamplingSchedule(storages.gross_bytes(device), self.costs, from_bytes)
            for device in storages.devices
        }
        self._from_bytes = from_bytes
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
            self.schedules[device] = SamplingSchedule(0, self.costs, self._from_bytes)
        return self.schedules[device]

    def increase_bytes(self, device: int) -> int:
        """Return the live bytes on a device that the block made."""
        return self.storages.gross_bytes(device) - self.schedule_of(device).base_bytes

    def least_bytes(self, device: int) -> int:
        """Return the smallest size that samples examine."""
        return max(int(self.increase_bytes(device) * _SMALL_RATIO), 1)

    def to_explain(self, device: int) -> Iterator[WatchedStorage]:
        """Yield the storages on a device that need a holder: the block's own storages, and large older storages.

        The storages that a running backward made are left out. They belong to autograd until the backward ends, so a
        search through the program's objects would be long and find nothing.
        """
        context = self.context
        end = context.gradients.first_made if context.in_backward else self.storages.count
        for alive in (*self._at_entry(device), *self.storages.newest(self.first_number)):
            if alive.number >= end:
                return
            if alive.__class__ is WatchedStorage and alive.device == device:
                yield alive

    def _at_entry(self, device: int) -> list[WatchedStorage]:
        """Return the large storages on a device that were alive at entry and still are, such as a data set."""
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
        """Note the roles that have ended, if there is time. A sample searches only for storages without a role."""
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
        """Return True if a new deep search is due for storages that an earlier one found in no variable.

        A value on the evaluation stack usually gets a variable a moment later.
        """
        is_due = self._count_at_search + _SAMPLES_BETWEEN_SEARCHES <= self.costs.count
        if is_due and not self.unnamed[device].isdisjoint(self.told):
            self._count_at_search = self.costs.count
            return True
        return False

    def note_unnamed(self, device: int, nbytes: int) -> None:
        """Note the bytes without a holder in this sample. The figure of the sample before is kept, too.

        Args:
            device: string id of the device.
            nbytes: the bytes, or 0 if they are few.
        """
        self._unnamed_bytes[device] = self._unnamed_bytes.get(device, (0, 0))[1], nbytes

    def is_much_unnamed_again(self, device: int) -> bool:
        """Return True if the last two samples of a device had many bytes without a holder.

        They may be different storages: a program may replace its cache in each pass. After a True, this is False until
        the bytes without a holder have grown by a factor. It is also False in a backward and in an optimizer's step.
        """
        context, nbytes = self.context, min(self._unnamed_bytes[device])
        is_worth_it = nbytes > self._searched_bytes.get(device, 0) * _GROWTH_BETWEEN_SEARCHES
        if not is_worth_it or context.in_backward or context.optimizing:
            return False
        self._searched_bytes[device] = nbytes
        return True


class SamplingCosts:
    """The cost of a block's samples, on all devices, and the decisions that depend on it.

    A *sample of the roles* compares the known roles of storages with the present ones. It is a part of most samples,
    and has limits of its own.

    Attributes:
        count: the samples so far.
        cost_ticks: their time.
        is_at_end_of_run: whether the running sample is taken at the end of a run of torch's own code.
    """

    def __init__(self) -> None:
        self.count = 0
        self.cost_ticks = 0
        self._heap_scan_ticks = 0
        self._role_look_count = self._role_look_ticks = self._looked_at_count = 0
        self._heap_scan_count = 0
        self._peek_count = self._peek_ticks = 0
        self._refused_at_ticks = -1
        self._is_role_look_free = self.is_at_end_of_run = False
        self._at_ends_count = 0
        self._start_ticks = ticks()
        self._ticks_per_role = _NS_PER_ROLE / Clock().ns_per_tick

    def is_affordable(self) -> bool:
        """Return True if the samples so far took a small share of the time."""
        return self.cost_ticks <= _SAMPLES_TIME_RATIO * (ticks() - self._start_ticks)

    @property
    def affordable_at_ticks(self) -> int:
        """The time in ticks at which the samples so far become a small share of the block's time."""
        return self._start_ticks + int(self.cost_ticks / _SAMPLES_TIME_RATIO)

    def may_scan_heap(self) -> bool:
        """Return True if there is time to go through all objects of the process, which takes tens of milliseconds."""
        if self._heap_scan_count < _FREE_HEAP_SCANS:
            return True
        return self._heap_scan_ticks <= _HEAP_SCANS_TIME_RATIO * (ticks() - self._start_ticks)

    def may_look_at_roles(self, known_count: int) -> bool:
        """Return True if the roles may be sampled now. The first rule that allows it decides.

        - At the end of a run of torch's own code: these samples have examined few objects together.
        - The samples of the roles were few, and have examined few objects together.
        - They have examined very few objects together, however many samples there were.
        - `look_at_roles_for_free` was called for this sample, and they have examined few objects together.
        - They take a small share of the time of all samples, this one included.

        Args:
            known_count: how many storages and modules the sample would examine.
        """
        if self.is_at_end_of_run and self._at_ends_count + known_count <= _FREE_OF_ROLE_LOOKS:
            self._at_ends_count += known_count
            return True
        looked_at_count = self._looked_at_count + known_count
        is_little = looked_at_count <= _FREE_OF_ROLE_LOOKS
        if self._role_look_count < _FREE_ROLE_LOOKS and is_little:
            return True
        if looked_at_count <= _FREE_OF_SMALL_PROGRAMS or (self._is_role_look_free and is_little):
            return True
        per_role = (
            self._role_look_ticks / self._looked_at_count if self._looked_at_count else self._ticks_per_role
        )
        expected_ticks = self._role_look_ticks + known_count * per_role
        is_affordable = expected_ticks <= _ROLE_LOOKS_RATIO * self.cost_ticks
        if not is_affordable:
            self._refused_at_ticks = self.cost_ticks
        return is_affordable

    @property
    def may_ask_for_roles(self) -> bool:
        """Whether the roles may be sampled outside a sample. After a refusal, this is False until the next sample."""
        return self._refused_at_ticks != self.cost_ticks

    def look_at_roles_for_free(self, *, at_end_of_run: bool = False) -> None:
        """Let the next sample include the roles whatever that costs, if they are not too many.

        Args:
            at_end_of_run: whether a run of torch's own code ends. Such samples have a limit of their own.
        """
        self._is_role_look_free, self.is_at_end_of_run = True, at_end_of_run

    def roles_looked_at(self, known_count: int, spent_ticks: int) -> None:
        """Note how many objects a sample of the roles examined, and its time."""
        self._role_look_count += 1
        self._looked_at_count += known_count
        self._role_look_ticks += spent_ticks

    @property
    def may_peek(self) -> bool:
        """Whether a peek is allowed: the peeks so far are few, or took a small share of the block's time."""
        if self._peek_count < _FREE_PEEKS:
            return True
        return self._peek_ticks <= _PEEKS_TIME_RATIO * (ticks() - self._start_ticks)

    def peeked(self, spent_ticks: int) -> None:
        """Note the time of a peek."""
        self._peek_count += 1
        self._peek_ticks += spent_ticks

    def heap_scanned(self, spent_ticks: int) -> None:
        """Note the time of a search through all objects."""
        self._heap_scan_count += 1
        self._heap_scan_ticks += spent_ticks

    def sampled(self, spent_ticks: int) -> None:
        """Note the time of a sample."""
        self.count += 1
        self.cost_ticks += spent_ticks
        self._is_role_look_free = self.is_at_end_of_run = False


class SamplingSchedule:
    """The peaks of one device so far, and the decision whether a birth is worth a sample.

    The *increase* is the live bytes that the block made, with the workspace of the running op. There are three kinds of
    samples:

    - planned: at the op of an iteration at which the last iteration had its peak, less often if the peak stays equal;
    - on the way up: when the increase has grown by a factor since the last sample of this kind;
    - fresh: when the increase is near its highest or above, and many bytes were made since the last sample.

    The time of planned and fresh samples is limited.

    Args:
        base_bytes: live bytes on the device when the block is entered.
        costs: the cost of the samples.
        from_bytes: no sample is worthwhile while the block's own live bytes are below this.

    Attributes:
        peak_op: how many ops had started at the birth with the highest increase. -1 before the first birth.
        is_worth_a_peek: whether the last birth made a new peak. From the second iteration on, a birth counts only if it
            comes as late in its iteration as the peak of the last iteration, or later.
        is_new_peak: whether the last birth made a new peak, and not in the first iteration.
        is_too_dear: whether the last birth was worth a fresh sample and only the time limit prevented it. False while a
            sample is planned.
    """

    def __init__(self, base_bytes: int, costs: SamplingCosts, from_bytes: int = 0) -> None:
        self.base_bytes, self.from_bytes = base_bytes, from_bytes
        self._costs = costs
        self._due_count = self._free_count = 0
        self._high_bytes = 0
        self._climbed_bytes = min(int(base_bytes * _LEAST_RATIO), _LEAST_BYTES)
        self._born_bytes = 0
        self._again = 0
        self._due_op = -1
        self._peak_bytes, self.peak_op, self.is_new_peak, self.is_too_dear = 0, -1, False, False
        self.is_worth_a_peek = False
        self._iteration_start = 0
        self._iteration_high = (0, -1)
        self._last_peak, self._same_count = (0, -1), 0

    def iteration_starts(self, op: int, last_from: int | None = None) -> None:
        """Start an iteration. Plan a sample in it, as many ops after its start as the last iteration's peak came.

        Args:
            op: how many ops have started.
            last_from: the `op` at which the last iteration began, if this was not called then. None if it was.
        """
        high_bytes, peak_op = self._iteration_high
        start = self._iteration_start if last_from is None else last_from
        peak = high_bytes, max(peak_op - start, 0)
        self._same_count = self._same_count + 1 if peak == self._last_peak else 0
        self._last_peak = peak
        is_needed = self._same_count % _SAME_BETWEEN_SAMPLES == 0 and self._costs.is_affordable()
        is_wanted = peak_op >= 0 and (self._due_count < _FREE_DUE_SAMPLES or is_needed)
        self._due_op = op + peak[1] if is_wanted else -1
        self._iteration_start, self._iteration_high, self.is_too_dear = op, (0, -1), False

    def worth_from_bytes(self) -> int:
        """Return the live bytes that a birth must exceed so that `is_worth_it` is called."""
        if self._due_op >= 0:
            return self.base_bytes + self.from_bytes - 1 if self.from_bytes else 0
        climb = int(self._next_climb_bytes)
        near = int(self._high_bytes * _NEAR_RATIO) if self._again < _MAX_AGAIN else climb
        asks = self._iteration_start and self._costs.may_ask_for_roles
        new_peak = self._peak_bytes if asks or self._costs.may_peek else climb
        return self.base_bytes + max(min(near, climb, new_peak), self.from_bytes - 1)

    def quiet_bytes(self) -> int:
        """Return the live bytes up to which `is_worth_it` need not be called until samples are affordable again.

        Return -1 unless `is_too_dear`. This saves a test of the time at every birth.
        """
        if not self.is_too_dear:
            return -1
        return min(self.base_bytes + int(self._next_climb_bytes), self._iteration_high[0])

    @property
    def _next_climb_bytes(self) -> float:
        """The increase that a birth must exceed for the next sample on the way up."""
        is_low = self._climbed_bytes < self.base_bytes * _LOW_RATIO
        return self._climbed_bytes * (_LOW_CLIMB_RATIO if is_low else _CLIMB_RATIO)

    def is_worth_it(self, born_bytes: int, high_bytes: int, op: int) -> bool:
        """Return True if a sample should be taken now, at a birth. Update the attributes.

        Args:
            born_bytes: size of the new storage.
            high_bytes: the most live bytes during the op that made it.
            op: how many ops have started.
        """
        self._born_bytes += born_bytes
        self.is_too_dear = False
        if high_bytes > self._iteration_high[0]:
            self._iteration_high = (high_bytes, op)
        increase, high = high_bytes - self.base_bytes, self._high_bytes
        if increase < self.from_bytes:
            self.is_new_peak = self.is_worth_a_peek = False
            return False
        self.is_new_peak = increase > self._peak_bytes and self._iteration_start > 0
        is_after_last_peak = op >= self._iteration_start + self._last_peak[1]
        self.is_worth_a_peek = is_after_last_peak and increase > self._peak_bytes
        if increase > self._peak_bytes:
            self._peak_bytes, self.peak_op = increase, op
        is_due = self._is_due(op)
        climbs = increase > self._next_climb_bytes
        if not (is_due or climbs or self._is_fresh(increase)):
            return False
        if climbs:
            self._climbed_bytes, self._again = increase, 0
        self._high_bytes = max(high, increase)
        self._born_bytes = 0
        return True

    def _is_due(self, op: int) -> bool:
        if self._due_op < 0 or op < self._due_op:
            return False
        self._due_op = -1
        self._due_count += 1
        # Otherwise the roles known at the peak would depend on how fast the machine is.
        if self._due_count <= _FREE_DUE_SAMPLES:
            self._costs.look_at_roles_for_free()
        return True

    def _is_fresh(self, increase_bytes: int) -> bool:
        """Return True if a fresh sample is worthwhile and affordable; see the class."""
        high = self._high_bytes
        enough = self._born_bytes >= high * _FRESH_RATIO * _FRESH_GROWTH_RATIO**self._again
        if not enough or increase_bytes < high * _NEAR_RATIO or self._again >= _MAX_AGAIN:
            return False
        if self._free_count < _FREE_FRESH_SAMPLES:
            self._free_count += 1
        elif not self._costs.is_affordable():
            self.is_too_dear = self._due_op < 0
            return False
        self._again += 1
        return True
