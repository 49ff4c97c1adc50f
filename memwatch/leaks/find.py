"""find_leaks: report what each further call of a function adds.

The bytes in use on each device only tell whether the next call must be watched. A search of the heap finds the leaks.
"""

from __future__ import annotations

import functools
import gc
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final, Literal

from memwatch._torch.autograd import next_sequence_nr
from memwatch.devices import adapter_of, devices_in_use
from memwatch.errors import MemwatchError, OptionError
from memwatch.heap.classes import count_by_class, named_classes
from memwatch.heap.names import type_name
from memwatch.heap.roots import Held, is_tool_module
from memwatch.heap.tensors import TypeFilter, is_node, quiet, type_dict
from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.leaks.cause import series_of
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.excuses import Exemptions, unbalanced
from memwatch.leaks.groups import leak_of, leaks_of, merge_and_sort
from memwatch.leaks.growth import growth
from memwatch.leaks.leak import Leaks
from memwatch.leaks.ledger import Change, Ledger, Threads
from memwatch.leaks.new_storages import NewStorageMode, NewStorages, OtherThreads
from memwatch.leaks.without_tensors import (
    are_registered,
    holder_of_largest_graph,
    holders_of_growing_graphs,
    holders_of_kept_nodes,
    leak_of_graph,
    leak_of_kept_nodes,
    leaks_of_hooks,
    next_hook_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memwatch.heap.paths import Step
    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.growth import Growth
    from memwatch.leaks.leak import Leak, Survivor
    from memwatch.leaks.new_storages import NewStorage

# How often a function is called to see what each call adds.

AUTO: Final = "auto"
PERIOD: Final = 4
"""Calls. A leak on every n-th call is found for each n up to this one. A guess."""
_FURTHER: Final = 32  # calls after the first ones, while what they add is not clear; a guess
MOST_BYTES: Final = 2**30
"""No further calls are made once what they left is more. A guess."""
MOST_S: Final = 20.0
"""No further calls are made, beyond the first few, once they took longer. A guess."""

Runs = int | Literal["auto"]


class RunsError(MemwatchError, ValueError):
    """The number of warm-up or measured runs makes no sense."""


@dataclass(frozen=True)
class Schedule:
    """How often a function is called.

    Attributes:
        warmup: calls before measuring.
        least: measured calls that are made in any case.
        further: calls that are made beyond these to tell a window, or a cache, that fills from a leak.
    """

    warmup: int
    least: int
    further: int = 0

    @property
    def every_run(self) -> bool:
        """Whether a leak must grow in every measured run, for there will be no more."""
        return not self.further


def schedule_of(warmup: int, runs: Runs, *, least: int = PERIOD) -> Schedule:
    """Return the schedule for the arguments of a check.

    Args:
        warmup: calls before measuring, 0 or more.
        runs: measured calls, 1 or more, or "auto".
        least: measured calls of "auto" if nothing grows.

    Raises:
        RunsError: ``warmup`` is negative, or ``runs`` is neither positive nor "auto".
    """
    if runs == AUTO and warmup >= 0:
        return Schedule(warmup, least, _FURTHER)
    if warmup < 0 or not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise RunsError(
            f"warmup={warmup!r}, runs={runs!r}: warmup must be 0 or more and runs 1 or more, or 'auto'"
        )
    return Schedule(warmup, runs)


def memory_in_use() -> dict[str, int]:
    """Return the bytes that the allocator of each device has handed out; 0 where nobody counts."""
    return {name: adapter_of(name).allocated_bytes(name) for name in devices_in_use()}


def most_growth_bytes(before: dict[str, int], after: dict[str, int]) -> int:
    """Return the growth of the device whose memory grew most, in bytes."""
    return max(nbytes - before.get(name, 0) for name, nbytes in after.items())


__all__ = ["RunsError", "find_growth", "find_leaks"]

_NOISE_BYTES: Final = 64
"""Memory of a device that grew by no more than this did not grow. A guess."""
_ONE_STEP: Final = 2  # counts: what one call alone adds does not grow
_TWO_PAIRS: Final = 4  # measured calls: fewer show no period
_PERIODS_OF_HOOKS: Final = 3  # of calls. A table that still has hooks of each call only grows. A guess


def find_leaks(
    fn: Callable[..., Any],
    *args: Any,
    warmup: int = 1,
    runs: Runs = AUTO,
    **kwargs: Any,
) -> list[Leak]:
    """Find the tensors that each further call of a function leaves behind.

    The function is called with automatic garbage collection off. Memory that the first calls leave (caches, lazily
    made state) does not count. A leak is memory that the measured calls keep adding to one reference: more tensors,
    or a larger one. If as much dies in the same place as is born there, it is not a leak. The function's result is
    dropped.

    With ``runs="auto"`` there are 4 measured calls. If only containers, caches or autograd graphs grew in them, or not
    every call added something, up to 36 further calls follow. They separate a leak from a window that fills, and find
    a leak on every n-th call up to n = 4. They end once nothing has grown for 4 calls, or 1 GiB is left, or 20 s are
    over.

    Args:
        fn: the function, called with ``args`` and ``kwargs``.
        *args: its arguments.
        warmup: calls before measuring, 0 or more.
        runs: measured calls, 1 or more, or "auto". Each of them must add to a leak. With 4 or more it is enough if
            one of the last two calls adds to it, one of the two before those, and so on.
        **kwargs: its keyword arguments.

    Returns:
        A list of leaks, largest first, with bytes and counts per call. Without leaks it is empty.

    Raises:
        RunsError: ``warmup`` is negative, or ``runs`` is neither positive nor "auto".
        OptionError: ``fn`` is no function.
    """
    if not callable(fn):
        raise OptionError(
            f"find_leaks() runs a function, and {fn!r} is not one; pass the function, without calling it"
        )
    return Leaks(find_growth(fn, args, kwargs, schedule_of(warmup, runs)))


def find_growth(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    schedule: Schedule,
    *,
    followed: object = None,
) -> list[Leak]:
    """Find the tensors that each further call of a function leaves behind, by a schedule.

    Args:
        fn: the function.
        args: its arguments.
        kwargs: its keyword arguments.
        schedule: how often it is called.
        followed: the function of the program, if `fn` wraps it. Leaks are followed through what it refers to.
    """
    search = _GrowthSearch(fn, args, kwargs, schedule, fn if followed is None else followed)
    search.ledger.start()
    try:
        return search.leaks()
    finally:
        search.ledger.stop()


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Held]:
    """Yield the arguments: they are the caller's, so what grows inside them is retained."""
    for position, value in enumerate(args):
        yield Held(EdgeKind.ARGUMENT, None, value, position=position)
    for name, value in kwargs.items():
        yield Held(EdgeKind.ARGUMENT, name, value)


class _GrowthSearch:
    """Calls the function, counts the storages that each call left, and searches for their holders."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        schedule: Schedule,
        followed: object,
    ) -> None:
        self.ledger = Ledger()
        self._fn, self._args, self._kwargs, self._followed = fn, args, kwargs, followed
        self._schedule = schedule
        self._threads = self._measured_threads = Threads()
        self._changes: list[Change] = []  # of each call, warm-up calls included
        # before some calls and after each, once it matters who held what died
        self._looks: list[Diagnosis] = []
        self._hook_numbers = [next_hook_number()]  # before the calls and after each
        self._node_numbers: list[int] = []  # after each call
        self._calls_between = 1  # calls between two looks
        self._end_s: float | None = None  # clock at the end of the last call
        self._classes: list[dict[int, int]] = []  # objects by class, before the measured calls and after each
        # where objects are counted: all; those of the first generation where the function runs no collection itself
        self._growing: Callable[[], list[object]] = gc.get_objects
        # With no call to look at first, its making of storages must be watched.
        self._suspicious = schedule.warmup + schedule.least == 1

    def leaks(self) -> list[Leak]:
        """Make the calls and return what they leak."""
        schedule = self._schedule
        collected = _collections()
        for _ in range(schedule.warmup):
            self._call()
        if schedule.warmup and _collections() == collected:
            self._growing = functools.partial(gc.get_objects, 0)
        self._measured_threads = Threads()
        self._look_if_needed()
        self._note_classes()
        for _ in range(schedule.least):
            self._call()
            self._look_if_needed()
            self._note_classes()
        may_grow = self._nodes_grow(schedule.least) or self._nodes_may_grow_on_some_calls()
        leaks = self._leaks_of_storages()
        if may_grow:
            leaks = self._with_nodes(leaks)
        return leaks + self._leaks_of_hooks(leaks)

    def _leaks_of_hooks(self, leaks: list[Leak]) -> list[Leak]:
        """Return the hooks that each call leaves registered, or every n-th call."""
        schedule = self._schedule
        numbers = self._hook_numbers[schedule.warmup :]
        period = 1
        if any(before == after for before, after in pairwise(numbers)):
            period = PERIOD if schedule.further else 2
            if schedule.further and are_registered(range(numbers[0], next_hook_number())):
                while len(numbers) <= _PERIODS_OF_HOOKS * PERIOD:
                    self._call()
                    numbers = self._hook_numbers[schedule.warmup :]
        return leaks_of_hooks(numbers, self._held(), leaks, period=period)

    def _leaks_of_storages(self) -> list[Leak]:
        """Return the leaks of tensors, after further calls where these are needed."""
        schedule = self._schedule
        grew = self._grew(schedule.least) if schedule.further else all(map(self._grew_in, self._periods()))
        if not grew:
            return []
        beside = grown_classes(self._classes)
        leaks = self._judge()
        return [replace(leak, beside=beside) for leak in leaks[:1]] + leaks[1:]

    def _call(self) -> None:
        """Call once and note what it changed."""
        run = len(self._changes)
        before = memory_in_use()
        if self._end_s is not None:
            self.ledger.skip(time.monotonic() - self._end_s)
        made = NewStorages()
        watch = NewStorageMode(made, run) if self._suspicious else None
        others = OtherThreads(watch) if watch is not None else None
        if watch is not None and others is not None:
            others.start()
            watch.start()
        try:
            try:
                self._fn(*self._args, **self._kwargs)
            finally:
                self._end_s = time.monotonic()
                if watch is not None:
                    watch.stop()
            self._threads.settle()
        finally:
            if others is not None:
                others.stop()
        change = self.ledger.end_run(run, made)
        del made, watch, others  # an exception that the function keeps has this frame among its callers
        self._changes.append(change)
        self._hook_numbers.append(next_hook_number())
        self._node_numbers.append(next_sequence_nr())
        grew = most_growth_bytes(before, memory_in_use()) > _NOISE_BYTES
        self._suspicious = self.ledger.survives() or change.nodes > 0 or grew

    def _note_classes(self) -> None:
        if self.ledger.survives():
            self._classes.append(count_by_class(self._growing()))

    def _grew(self, runs: int) -> bool:
        """Return True if one of the last runs left more than it replaced."""
        return self._grew_in(range(len(self._changes) - runs, len(self._changes)))

    def _grew_in(self, runs: Iterable[int]) -> bool:
        """Return True if one of some runs left more than it replaced."""
        return any(self._changes[run].added() for run in runs)

    def _held(self) -> list[Held]:
        """Return what lives on after the calls."""
        return [Held(EdgeKind.CHECKED_FUNCTION, None, self._followed), *_named(self._args, self._kwargs)]

    def _nodes_grow(self, runs: int, *, period: int = 1) -> bool:
        """Return True if each so many of the last runs left more autograd nodes than there were before."""
        counts = [change.nodes for change in self._changes[-runs - 1 :]]
        counts = counts[::-period][::-1]
        return len(counts) > _ONE_STEP and all(before < after for before, after in pairwise(counts))

    def _nodes_may_grow_on_some_calls(self) -> bool:
        """Return True if there are more nodes than before the measured calls. Without further calls, pairs decide."""
        schedule = self._schedule
        if not schedule.further:
            return schedule.least >= _TWO_PAIRS and self._nodes_grow(schedule.least, period=2)
        counts = [change.nodes for change in self._changes[-schedule.least - 1 :]]
        return counts[-1] > counts[0]

    def _with_nodes(self, leaks: list[Leak]) -> list[Leak]:
        """Add the nodes of graphs that grow: to the leak whose tensors keep a graph, or as a leak of their own.

        Backward frees the tensors that a graph saved. The nodes stay as long as a value leads to them, as in
        `total = total + loss`.
        """
        keeping = next((number for number, leak in enumerate(leaks) if leak.keeps_graph), None)
        if keeping is None:
            is_held = self._holders_of_kept_nodes() or self._holder_of_graph()
            if not (is_held and self._nodes_grow_on()):
                return leaks
            if kept := self._leaks_of_kept_nodes(leaks):
                return merge_and_sort([*leaks, *kept])
        survivor = self._holder_of_graph() if keeping is None else None
        if keeping is None and survivor is None:
            return leaks
        schedule = self._schedule
        counts = [change.nodes for change in self._changes[max(0, schedule.warmup - 1) :]]
        calls, grown = len(counts) - 1, counts[-1] - counts[0]
        if survivor is not None and survivor.cut is not None:
            same = series_of(survivor.cut.edge)
            keeping = next(
                (n for n, leak in enumerate(leaks) if leak.cut is not None and series_of(leak.cut) == same),
                None,
            )
        if keeping is not None:
            every = leaks[keeping].every
            is_shared = sum(leak.keeps_graph for leak in leaks) > 1
            nodes = grown * every // calls
            leaks[keeping] = replace(leaks[keeping], graph_nodes=nodes, shares_nodes=is_shared)
            return leaks
        assert survivor is not None
        several = self._holders_of_growing_graphs()
        if len(several) > 1:
            graphs = [leak_of_graph(each, max(1, own // calls), self._end_s) for each, own in several]
            return merge_and_sort([*leaks, *graphs])
        if several:  # a mean of the total has the largest graph
            survivor = several[0][0]
        rises = [after - before for before, after in pairwise(counts) if before < after]
        every = max(1, round(calls / len(rises)))
        leak = leak_of_graph(survivor, median_low(rises), self._end_s, every=every)
        return merge_and_sort([*leaks, leak])

    def _nodes_grow_on(self) -> bool:
        """Return True if further calls add nodes too, so that no window was filling."""
        schedule = self._schedule
        end_s = time.monotonic() + MOST_S
        first = len(self._changes)
        while len(self._changes) - first < schedule.further and time.monotonic() < end_s:
            before = self._changes[-1].nodes
            for _ in range(PERIOD):
                self._call()
            if self._changes[-1].nodes <= before:
                return False
        return True

    def _holder_of_graph(self) -> Survivor | None:
        """Return the tensor with the largest graph, with its holder. None if the holder is excused."""
        ends = [*self.ledger.older_ends(), *self.ledger.graph_ends()]
        alive, in_place = self.ledger.alive(0), self.ledger.in_place
        return holder_of_largest_graph(ends, alive, held=self._held(), in_place=in_place)

    def _holders_of_growing_graphs(self) -> list[tuple[Survivor, int]]:
        """Return the holders of all graphs to which each measured call added, each with its own nodes."""
        ends = [*self.ledger.older_ends(), *self.ledger.graph_ends()]
        alive, in_place = self.ledger.alive(0), self.ledger.in_place
        numbers = self._node_numbers[max(0, self._schedule.warmup - 1) :]
        return holders_of_growing_graphs(ends, alive, numbers, held=self._held(), in_place=in_place)

    def _holders_of_kept_nodes(self) -> list[tuple[Survivor, int]]:
        """Return the holders that keep autograd nodes of all calls themselves, each with the number of its nodes."""
        with quiet():
            nodes: list[Any] = [obj for obj in self.ledger.young() if is_node(obj)]
        numbers = self._node_numbers[max(0, self._schedule.warmup - 1) :]
        return holders_of_kept_nodes(nodes, numbers, held=self._held())

    def _leaks_of_kept_nodes(self, leaks: Sequence[Leak]) -> list[Leak]:
        """Return the leaks of holders that keep autograd nodes themselves, but for those that leaks name already."""
        calls = len(self._node_numbers[max(0, self._schedule.warmup - 1) :]) - 1
        found = [
            leak_of_kept_nodes(survivor, max(1, nodes // calls), self._end_s)
            for survivor, nodes in self._holders_of_kept_nodes()
        ]
        causes = {leak.cause for leak in leaks}
        return [leak for leak in found if leak.cause not in causes]

    def _periods(self) -> list[range]:
        """Return the ranges of runs that must each add to a leak if no further calls are made.

        Each range is one measured run. If some runs added nothing and there are four at least, each range is two runs,
        because the function may leak on every second call. The pairs end with the last run, so the first run of an
        odd number counts for nothing.
        """
        measured = range(self._schedule.warmup, len(self._changes))
        if len(measured) < _TWO_PAIRS or all(self._grew_in([run]) for run in measured):
            return [range(run, run + 1) for run in measured]
        return [range(first, first + 2) for first in range(measured.stop - 2, measured.start - 1, -2)]

    def _look(self, *, elders: bool = False) -> Diagnosis:
        """Find the holders of storages that the measured calls left. Before those calls: that the warm-up left."""
        held = self._held()
        first = 0 if elders else self._schedule.warmup
        exempt = Exemptions(state=self._schedule.least == 1)
        threads = self._measured_threads.started()
        made = self.ledger.alive(first)
        return diagnose(made, exempt, per_call=True, held=held, elders=elders, threads=threads)

    def _look_if_needed(self) -> None:
        """Look at the heap after a run if it will matter who held what dies; before further calls, twice will do."""
        schedule = self._schedule
        is_last = len(self._changes) == schedule.warmup + schedule.least
        if (schedule.every_run or is_last or not self._looks) and self._hides_growth(
            schedule.warmup - schedule.every_run
        ):
            self._looks.append(self._look(elders=True))

    def _hides_growth(self, first: int) -> bool:
        return any(change.hides_growth(run) for run, change in enumerate(self._changes) if run >= first)

    def _grew_before_looks(self) -> bool:
        """Return True if several measured calls left more storages than they freed: the first look may be too late."""
        measured = self._changes[self._schedule.warmup :]
        return sum(len(change.born) > len(change.died) for change in measured) > 1

    def _judge(self) -> list[Leak]:
        """Decide from the first measured calls, or make further calls."""
        schedule = self._schedule
        measured = range(schedule.warmup, len(self._changes))
        if schedule.every_run:
            self._calls_between = len(self._periods()[-1])
            self._looks = self._looks[:: -self._calls_between][::-1]
        if len(self._looks) > 1:
            grown = growth(self._looks, (), every_run=schedule.every_run)
            if schedule.further and (grown or self._grew_before_looks()):
                return self._after_further_calls()
            return self._leaks_at(grown)
        look = self._look()
        if not schedule.further:
            look.tell_kinds(by_c_alone=True)
            change = Change(self.ledger.alive(schedule.warmup), self._died_since(schedule.warmup))
            return leaks_of(
                unbalanced(look.retained, look.unreachable, change),
                measured,
                per_call=True,
                periods=self._periods(),
                end_s=self._end_s,
                added=[each.added() for each in self._changes],
            )
        if not look.survivors:
            return []
        return (
            self._leaks_by_birth(look, measured)
            if _is_certain(look, measured)
            else self._after_further_calls(look)
        )

    def _after_further_calls(self, look: Diagnosis | None = None) -> list[Leak]:
        """Call until nothing grows any more, or the schedule ends, and decide from the last calls."""
        measured = range(self._schedule.warmup, len(self._changes))
        earlier, self._looks, self._calls_between = self._looks, [], 1
        self._call_further()
        if not self._grew(PERIOD):
            return []
        if self._hides_growth(self._schedule.warmup):
            self._looks.append(self._look(elders=True))
            for _ in range(PERIOD):
                self._call()
                self._looks.append(self._look(elders=True))
            runs = len(self._changes) - self._schedule.warmup
            return self._leaks_at(growth(self._looks, earlier, every_run=False, runs=runs))
        if look is not None and self._went_on_alike(measured):
            return self._leaks_by_birth(look, measured)
        last = len(self._changes)
        periods = [range(last - 2 * PERIOD, last - PERIOD), range(last - PERIOD, last)]
        return self._leaks_by_birth(self._look(), range(measured.start, last), periods)

    def _call_further(self) -> None:
        end_s = time.monotonic() + MOST_S
        first = len(self._changes)
        while len(self._changes) - first < self._schedule.further:
            self._call()
            further = len(self._changes) - first
            if further >= PERIOD and (not self._grew(PERIOD) or time.monotonic() > end_s):
                break
            if further >= PERIOD and self._left_bytes() > MOST_BYTES:
                break

    def _left_bytes(self) -> int:
        return sum(made.nbytes for made in self.ledger.alive(self._schedule.warmup))

    def _died_since(self, first: int) -> list[NewStorage]:
        """Return the storages from before a call that this call and later ones freed."""
        return [made for change in self._changes[first:] for made in change.died if made.run < first]

    def _went_on_alike(self, measured: range) -> bool:
        """Return True if every measured call left the same, and nothing of it died."""
        first = self._changes[measured.start].added()
        return all(change.added() == first and not change.died for change in self._changes[measured.start :])

    def _leaks_by_birth(
        self, look: Diagnosis, measured: range, periods: Sequence[range] | None = None
    ) -> list[Leak]:
        """Return the leaks to which every period added: what was born in each run is still where it was put."""
        look.tell_kinds(by_c_alone=True)
        return leaks_of(
            look.survivors,
            measured,
            per_call=True,
            periods=periods,
            end_s=self._end_s,
            added=[change.added() for change in self._changes],
        )

    def _leaks_at(self, grown: Sequence[Growth]) -> list[Leak]:
        """Return the leaks of the holders that have more at the last look than at the first."""
        last, runs = self._looks[-1], (len(self._looks) - 1) * self._calls_between
        last.tell_kinds(by_c_alone=True)
        leaks = []
        for each in [part for holder in grown for part in holder.of_kinds()]:
            every = max(1, round(runs / each.count)) if each.count else 1
            nbytes = max(1, each.nbytes * every // runs)
            count = each.count * every // runs
            leak = leak_of(
                each.survivors, nbytes, count, per_call=True, end_s=self._end_s, grows=not each.count
            )
            leaks.append(replace(leak, every=every))
        return merge_and_sort(leaks)


def _is_certain(look: Diagnosis, measured: range) -> bool:
    """Return True if every call added to a holder that is neither a container nor a cache.

    Further calls change nothing.
    """
    runs: dict[object, set[int]] = {}
    fills = False
    for survivor in look.survivors:
        runs.setdefault(survivor.holding.place, set()).add(survivor.storage.run)
        fills = fills or (not survivor.unreachable and _may_fill(survivor))
    return not fills and all(found.issuperset(measured) for found in runs.values())


def _may_fill(survivor: Survivor) -> bool:
    """Return True for an entry of a container, and of a tuple that each call makes anew for a name to have."""
    cut = survivor.cut
    if cut is None or cut.edge.kind.row.is_filled:
        return cut is not None and not _is_in_bounded_cache(cut)
    below = any(step.start >= cut.end for step in survivor.steps)
    return below and cut.edge.target is not None and cut.edge.target.kind is VertexKind.CONTAINER


def _is_in_bounded_cache(cut: Step) -> bool:
    """Return True for an object that is an argument of a cached call: the cache is a leak before it is full, too."""
    owner = cut.edge.owner
    return cut.edge.kind is EdgeKind.CACHE_ARGUMENT and owner is not None and owner.limit is not None


def _collections() -> int:
    """Return how many collections have run in this process."""
    return sum(generation["collections"] for generation in gc.get_stats())


# Count the objects of the program that grow along with leaked tensors, by class.
#
# `objgraph.growth` has the same counts. It is not used because it first runs a collection, which would free the cycles
# under test, and because it names classes with code of their metaclasses.

_MOST_CLASSES: Final = 3  # classes that a leak names; a guess
_LEAST_COUNTS: Final = 3  # before, and after two calls
_BUILTIN: Final = "builtins"
_OF_TEST_TOOLS: Final = ("hypothesis",)
"""Packages beside the test runners whose objects grow with the examples and reports of a test."""


def grown_classes(counts: Sequence[Mapping[int, int]]) -> tuple[tuple[str, int], ...]:
    """Return the classes to which every call added objects, with the least number per call, the most first.

    Objects that a single call adds, as torch's tables on the first use of an op, do not count, so at least two calls
    are compared. Tensors and autograd nodes are the leak itself. Python's containers and functions come and go with
    any call. The objects of memwatch and of a test runner do not belong to the program.

    Args:
        counts: objects by class, before the calls and after each.
    """
    if len(counts) < _LEAST_COUNTS:
        return ()
    added_by_class = {
        key: added
        for key in counts[-1]
        if (added := min(after.get(key, 0) - before.get(key, 0) for before, after in pairwise(counts))) > 0
    }
    # the calls' objects are young, unless the program itself ran a collection
    classes = named_classes(added_by_class, functools.partial(gc.get_objects, 0), gc.get_objects)
    is_tensor_or_node = TypeFilter()
    grown = [
        (type_name(cls), added_by_class[key])
        for key, cls in classes.items()
        if _is_of_program(cls) and not is_tensor_or_node.wants(cls)
    ]
    return tuple(sorted(grown, key=lambda row: (-row[1], row[0]))[:_MOST_CLASSES])


def _is_of_program(cls: type) -> bool:
    module = type_dict(cls).get("__module__")
    if type(module) is not str or module == _BUILTIN or is_tool_module(module):
        return False
    return module.partition(".")[0] not in _OF_TEST_TOOLS
