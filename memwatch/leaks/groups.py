"""From explained survivors to leaks: one leak per reference to cut, if every measured run added to it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from memwatch.heap.names import with_line
from memwatch.kinds.edges import VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.kinds.remedies import Remedy
from memwatch.leaks.advice import remedy_for, repeated_attribute
from memwatch.leaks.cause import cause_of, cause_of_thread
from memwatch.leaks.cut import container_of, edit_of, holder_of
from memwatch.leaks.excuses import is_latest
from memwatch.leaks.known_leaks import known_leak
from memwatch.leaks.leak import Leak
from memwatch.words.edges import edge_phrase, reference_phrase
from memwatch.words.leaks import advice, path_lines, site_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from memwatch.kinds.edges import Edge
    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.new_storages import NewStorage
    from memwatch.leaks.survivor import Name, Survivor

_FEW: Final = 3
"""With more periods than these, what all but the newest add to is a leak, wherever the newest one's tensor is."""
FEWEST_ADDED: Final = 4
"""Runs with something new that show a holder which grows more seldom than the periods. A program may keep its last
three checkpoints in a list, and with fewer runs that list would look the same. A guess."""


def leaks_of(
    survivors: Iterable[Survivor],
    measured: Sequence[int],
    *,
    per_call: bool,
    periods: Sequence[Collection[int]] | None = None,
    end_s: float | None = None,
    told: Callable[[Leak, list[Survivor]], None] | None = None,
    added: Sequence[Mapping[tuple[str, int], int]] | None = None,
    with_graph: bool = False,
    seldom: bool = False,
) -> list[Leak]:
    """Group survivors into leaks. If one reference holds tensors on two devices, these are two leaks.

    Args:
        survivors: the survivors, each with its holder.
        measured: indices of the measured runs.
        per_call: True to keep only groups to which the runs kept adding, and to count bytes per run.
        periods: sets of runs, each of which must have added to a leak; by default each run by itself.
        end_s: clock at the end of the last run, in seconds; by default now.
        told: called with each leak and its survivors.
        added: for each run, by device and size, the number of storages that it left without replacing dead ones; for
            `per_call` only. Without it the latest value of a name counts as a replacement.
        with_graph: True if the tensors are known to have a graph. By default, those of a graph show it.
        seldom: True to keep also groups to which runs far apart kept adding, see :func:`goes_on`; for `per_call` only.

    Returns:
        Leaks, largest first.
    """
    groups: dict[object, list[Survivor]] = {}
    for survivor in _with_their_loops(list(survivors)):
        groups.setdefault((survivor.kind, survivor.key, survivor.storage.device), []).append(survivor)
    needed = [{run} for run in measured] if periods is None else periods
    chosen = (
        _growing(list(groups.values()), needed, measured if seldom else ())
        if per_call
        else list(groups.values())
    )
    replaced = _replaced_values(chosen, added)
    leaks = []
    for group in chosen:
        kept = [survivor for survivor in group if id(survivor) not in replaced]
        runs = len(_runs(kept)) if per_call else 1
        nbytes = sum(survivor.storage.nbytes for survivor in (kept if per_call else group))
        if not per_call:  # of one pass over a tensor that grew, what it added
            nbytes -= sum(survivor.storage.replaced_bytes for survivor in group)
        count = len(kept if per_call else group) // runs
        grows = all(survivor.storage.grew for survivor in group)
        leak = leak_of(
            group, nbytes // runs, count, per_call=per_call, end_s=end_s, grows=grows, with_graph=with_graph
        )
        if told is not None:
            told(leak, group)
        every = _distance(_runs(group), measured)
        leaks.append(replace(leak, every=every) if per_call else leak)
    return largest_first(leaks)


def _with_their_loops(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Explain what C code alone holds by a loop that is never freed, if the line that made both is the same.

    The buckets of DistributedDataParallel are such storages: its reducer has them in C++, and the loop has the reducer.
    """
    loops: dict[tuple[str | None, int | None], Survivor] = {
        (step.edge.file, step.edge.line): each
        for each in survivors
        if each.kind is LeakKind.UNCOLLECTABLE
        for step in each.steps[: each.cycle_length]
        if step.edge.line is not None
        and step.edge.owner is not None
        and step.edge.owner.kind is VertexKind.OBJECT
    }
    return [_in_its_loop(each, loops) if loops and not each.steps else each for each in survivors]


def _in_its_loop(survivor: Survivor, loops: Mapping[tuple[str | None, int | None], Survivor]) -> Survivor:
    made = survivor.storage
    places = [place[:2] for place in (made.site, made.caller) if place is not None]
    loop = next((loops[place] for place in places if place in loops), None)
    if loop is None or not survivor.unreachable:
        return survivor
    return replace(loop, storage=made, tensor=survivor.tensor, nbytes=survivor.nbytes, is_named=False)


def _replaced_values(
    groups: Iterable[list[Survivor]], added: Sequence[Mapping[tuple[str, int], int]] | None
) -> set[int]:
    """Return the ids of the survivors that replaced dead storages, so that they do not count as growth.

    A new value of a name may replace the old one, or the old one may live on in a graph. Only the count of dead
    storages decides: the leaks of one run add up to the storages that the run added.
    """
    values = [survivor for group in groups for survivor in _values(group)]
    if added is None:
        return set(map(id, values))
    claims = Counter((each.storage.run, each.storage.size) for group in groups for each in group)
    replaced = set()
    for survivor in values:
        run, size = survivor.storage.run, survivor.storage.size
        if claims[run, size] > added[run].get(size, 0):
            claims[run, size] -= 1
            replaced.add(id(survivor))
    return replaced


def _values(group: list[Survivor]) -> list[Survivor]:
    """Return the values whose graph holds the rest of a group. The next values may replace them.

    They are the one value of a name, or entries of a container that no longer holds an entry of the first run.
    """
    behind = {each.holding[:2] for each in group if not is_latest(each)}
    entries = {id(each) for each in group if not each.through_graph and not is_latest(each)}
    first = min(_runs(group))
    if len(entries) == len(group) or any(id(each) in entries and each.storage.run == first for each in group):
        entries = set()
    return [
        each
        for each in group
        if not each.unreachable and (id(each) in entries or (is_latest(each) and each.holding[:2] in behind))
    ]


def largest_first(leaks: Iterable[Leak]) -> list[Leak]:
    """Return leaks in the order of the report. Leaks that one line makes at one holder come as one.

    A table by name with a list for each parameter is such a holder.
    """
    told: dict[object, list[Leak]] = {}
    for number, leak in enumerate(leaks):
        key = number if leak.site is None else (leak.kind, leak.device, leak.cause, leak.site, leak.every)
        told.setdefault(key, []).append(leak)
    return sorted(map(_together, told.values()), key=lambda leak: -leak.nbytes)


def _together(leaks: Sequence[Leak]) -> Leak:
    first = max(leaks, key=lambda leak: leak.nbytes)
    return replace(
        first,
        nbytes=sum(leak.nbytes for leak in leaks),
        count=sum(leak.count for leak in leaks),
        held_s=max(leak.held_s for leak in leaks),
    )


def goes_on(runs: Collection[int], measured: Sequence[int]) -> bool:
    """Return True if something is left of runs at about equal distances, from the first measured run to the last.

    The largest distance between two of them counts as the distance of all, so a window that dropped its oldest entries
    does not go on: it has nothing of the first runs.

    Args:
        runs: the runs of which something is left.
        measured: all measured runs.
    """
    if not measured or len(runs) < FEWEST_ADDED:
        return False
    ordered = sorted(runs)
    distance = max(after - before for before, after in pairwise(ordered))
    is_often = FEWEST_ADDED * distance <= len(measured)
    return is_often and ordered[0] - measured[0] <= distance and measured[-1] - ordered[-1] <= distance


def _distance(runs: Collection[int], measured: Sequence[int]) -> int:
    """Return the number of runs of which one adds to a leak."""
    every = max(1, round(len(measured) / len(runs)))
    if every < FEWEST_ADDED:
        return every
    # the runs before the first one, and after the last one, would count too much
    return round((max(runs) - min(runs)) / max(1, len(runs) - 1)) or every


def _growing(
    groups: list[list[Survivor]], periods: Sequence[Collection[int]], measured: Sequence[int]
) -> list[list[Survivor]]:
    """Keep the groups with survivors of every period, and join groups that only the last run separated.

    The newest tensor often has a holder of its own, a "last result" beside the list of all. So leftovers of one size
    that cover the periods are one group. It is named after the older ones, because their holder stays.
    """
    grown: list[list[Survivor]] = []
    leftover: dict[tuple[str, int], list[Survivor]] = {}
    for group in groups:
        is_often = _covers(group, periods) or (len(periods) > _FEW and _covers(group, periods[:-1]))
        if is_often or goes_on(_runs(group), measured):
            grown.append(group)
        else:
            for survivor in group:
                leftover.setdefault(survivor.storage.size, []).append(survivor)
    pools: dict[object, list[Survivor]] = {}
    for pool in leftover.values():
        if _covers(pool, periods):
            oldest = min(pool, key=lambda survivor: survivor.storage.run)
            pools.setdefault((oldest.kind, oldest.key, oldest.storage.device), []).extend(pool)
    return [*grown, *pools.values()]


def _covers(group: list[Survivor], periods: Iterable[Collection[int]]) -> bool:
    runs = _runs(group)
    return all(not runs.isdisjoint(period) for period in periods)


def _runs(group: list[Survivor]) -> set[int]:
    return {survivor.storage.run for survivor in group}


def leak_of(
    group: list[Survivor],
    nbytes: int,
    count: int,
    *,
    per_call: bool,
    end_s: float | None = None,
    grows: bool = False,
    with_graph: bool = False,
) -> Leak:
    """Return the leak of some survivors that belong to one cause.

    Args:
        group: the survivors.
        nbytes: its bytes; per call if `per_call`.
        count: its storages, likewise; the report has at least one.
        per_call: True if the figures are per call.
        end_s: clock when the check began to search, in seconds; by default now.
        grows: True if the leak is one tensor that becomes larger.
        with_graph: True if the tensors are known to have a graph. By default, those of a graph show it.
    """
    shown = _shown(group)
    nearest = _nearest(group)
    largest = max(
        (survivor for survivor in group if survivor.storage.site == nearest.site),
        key=lambda survivor: (survivor.storage.nbytes, -len(survivor.steps)),
    )
    end_s = time.monotonic() if end_s is None else end_s
    edges = tuple(step.edge for step in shown.steps)
    cut = shown.cut.edge if shown.cut else None
    cuts = _cuts(shown, group)
    holder, holder_edges = holder_of(shown)
    site, caller = _site(nearest)
    keeps_graph = with_graph or any(survivor.through_graph for survivor in group)
    remedy = remedy_for(shown.kind, cut, holder_edges, edges, cycle_length=shown.cycle_length)
    remedy = _remedy_of_group(remedy, shown, group, keeps_graph=keeps_graph, grows=grows)
    chain = repeated_attribute(edges) if shown.kind is LeakKind.RETAINED else None
    if chain is not None and (remedy.row.is_of_attribute or remedy.row.is_of_name):
        remedy = Remedy.CHAIN
    else:
        chain = None
    if shown.work is not None:
        remedy = Remedy.THREAD
    elif shown.is_replaced:
        remedy = Remedy.OPTIMIZER_STATE
    lines = {id(edge): with_line(edge) for edge in (*edges, *cuts)}
    known = known_leak(shown.kind, [lines[id(edge)] for edge in edges])
    return Leak(
        kind=shown.kind,
        nbytes=nbytes,
        device=shown.storage.device,
        count=max(1, count),
        holder=holder,
        container=container_of(shown) if shown.kind.is_reached else "",
        path=path_lines(
            [lines[id(edge)] for edge in edges], branch_at=shown.cycle_length if shown.looped else None
        ),
        site=site,
        caller=caller,
        known=known,
        advice=(known.remedy if known is not None else "")
        or advice(
            remedy,
            with_graph=keeps_graph and shown.kind.is_reached,
            further=[reference_phrase(lines[id(edge)]) for edge in cuts[1:]],
            is_complete=not any(survivor.has_more_cycles for survivor in group),
            shows_part=shown.kind is LeakKind.RETAINED and _mostly_views(group) and _shows_part(group),
            attribute=None if chain is None else chain.name,
        ),
        tensor=largest.tensor,
        held_s=max(0.0, end_s - min(survivor.storage.time_s for survivor in group)),
        per_call=per_call,
        reference=edge_phrase(cut) if cut else holder,
        keeps_graph=keeps_graph,
        edges=tuple(lines[id(edge)] for edge in edges),
        cut=None if cut is None else lines[id(cut)],
        cycle_length=0 if shown.kind.is_reached else shown.cycle_length,
        branch=shown.branch,
        cause=_cause(shown),
        cuts=tuple(lines[id(edge)] for edge in cuts),
        grows=grows,
        first_bytes=nearest.nbytes,
        one_value=all(survivor.may_be_replaced for survivor in group),
    )


def _cause(shown: Survivor) -> str:
    if shown.work is not None:
        return cause_of_thread(shown.kind, shown.work)
    if shown.main is None or shown.kind is LeakKind.RETAINED:
        cut = None if shown.cut is None else shown.cut.edge
        return cause_of(shown.kind, cut, [step.edge for step in shown.steps], shown.cycle_length)
    first, cycle = shown.main
    return cause_of(shown.kind, first.edge, [step.edge for step in cycle], len(cycle))


def _cuts(shown: Survivor, group: Iterable[Survivor]) -> tuple[Edge, ...]:
    """Return one reference for each edit that frees a group: the shown one, then those of further loops."""
    if shown.cut is None:
        return ()
    cuts = {edit_of(shown.cut.edge): shown.cut.edge}
    if shown.kind is not LeakKind.RETAINED:
        for survivor in group:
            for step in survivor.cuts:
                cuts.setdefault(edit_of(step.edge), step.edge)
    return tuple(cuts.values())


def _shown(group: list[Survivor]) -> Survivor:
    """Return the survivor whose path is shown. A survivor of the first run proves that its reference stays."""
    first = min(_runs(group))
    proven = [survivor for survivor in group if survivor.storage.run == first]
    if proven[0].work is not None:
        proven = _of_main_variable(proven)
    return min(
        proven, key=lambda survivor: (not survivor.is_named, len(survivor.steps), -survivor.storage.nbytes)
    )


def _of_main_variable(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Return the survivors behind one variable of a thread: one of the program's calls, or else the fullest one."""
    held = Counter(edit_of(each.cut.edge) for each in survivors if each.cut is not None)

    def rank(survivor: Survivor) -> tuple[bool, int]:
        owner, work = survivor.steps[0].edge.owner, survivor.work
        is_programs = owner is not None and work is not None and owner.file == work.file
        return is_programs, 0 if survivor.cut is None else held[edit_of(survivor.cut.edge)]

    best = max(map(rank, survivors))
    return [survivor for survivor in survivors if rank(survivor) == best]


def _remedy_of_group(
    remedy: Remedy, shown: Survivor, group: list[Survivor], *, keeps_graph: bool, grows: bool
) -> Remedy:
    """Return the remedy of a path, or a better one if the tensors at its end show it."""
    if grows and shown.kind is LeakKind.RETAINED and not keeps_graph:
        return Remedy.GROWING_TENSOR
    if shown.kind is LeakKind.GRAPH:
        return Remedy.GRAPH
    values = set(map(id, _values(group)))
    # if only the graph of a name's value, or of a container's entries, grows, to detach the value is enough
    is_of_values = remedy.row.is_of_name or remedy.row.is_of_container
    if is_of_values and all(each.through_graph for each in group if id(each) not in values):
        return Remedy.GRAPH
    if remedy is Remedy.BUFFER and not keeps_graph:
        return Remedy.SUBMODULE  # one more of them: to detach it changes nothing
    if remedy.row.is_of_container and shown.registers_itself:
        return Remedy.REGISTRY
    if shown.kind is LeakKind.RETAINED and _mostly_views(group) and not _shows_part(group):
        return Remedy.VIEW_WITH_GRAPH if keeps_graph else Remedy.VIEW
    return remedy


def _mostly_views(group: list[Survivor]) -> bool:
    """Return True if most bytes that are kept without a graph lie in storages that are only partly shown."""
    direct = [survivor for survivor in group if not survivor.through_graph]
    total = sum(survivor.nbytes for survivor in direct)
    return 2 * sum(survivor.nbytes for survivor in direct if survivor.is_view) > total


def _shows_part(group: list[Survivor]) -> bool:
    """Return True if results of ops with a graph, and no views, show only a part of their storages."""
    partly = [survivor for survivor in group if survivor.is_view and not survivor.through_graph]
    return bool(partly) and all(survivor.is_result for survivor in partly)


def _site(nearest: NewStorage) -> tuple[str | None, str | None]:
    """Return the line that made what is held first (the tensor itself, rather than its activations), and its caller."""
    if nearest.site is None:
        return None, None
    caller = None if nearest.caller is None else site_phrase(*nearest.caller)
    return site_phrase(*nearest.site), caller


def _nearest(group: list[Survivor]) -> NewStorage:
    """Return the storage with the shortest path, if possible one with a known line."""
    known = [survivor for survivor in group if survivor.storage.site is not None] or group
    return min(known, key=lambda survivor: (not survivor.is_named, len(survivor.steps))).storage


# Compare the storages behind each holder in successive snapshots of the heap, to find holders that only grow.
#
# A holder that drops as much as it takes keeps its count, and its bytes go up and down. A holder that keeps memory of
# each run has more storages after every run. A holder that keeps a single growing tensor has a larger storage.

Place = tuple[str, "Hashable"]
"""A device and a holder."""
Slot = tuple[Place, "Name"]
"""One reference of a holder."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one holder during some runs.

    Attributes:
        survivors: its storages.
        nbytes: bytes that all the runs together added.
        count: storages that they added; 0 if an existing one became larger.
    """

    survivors: list[Survivor]
    nbytes: int
    count: int

    def of_kinds(self) -> list[Growth]:
        """Return the growth of each kind of leak, once a collection has freed what it can."""
        survivors = [each.of_kind() if each.unreachable else each for each in self.survivors]
        return replace(self, survivors=survivors)._by_kind()

    def _by_kind(self) -> list[Growth]:
        """Return the growth of each kind of leak: of loops through one reference, gc may free some alone."""
        kinds = Counter(survivor.kind for survivor in self.survivors)
        if len(kinds) == 1:
            return [self]
        parts = []
        for kind, count in kinds.items():
            survivors = [survivor for survivor in self.survivors if survivor.kind is kind]
            share = sum(survivor.nbytes for survivor in survivors) / sum(
                each.nbytes for each in self.survivors
            )
            of_count = round(self.count * count / len(self.survivors))
            parts.append(Growth(survivors, round(self.nbytes * share), of_count))
        return parts


class _Behind:
    """The storages behind each reference of each holder in one snapshot."""

    def __init__(self, look: Diagnosis) -> None:
        self.counts: Counter[Slot] = Counter()
        self.nbytes: Counter[Slot] = Counter()
        self.by_place: Counter[Place] = Counter()
        for held in [*(survivor.holding for survivor in look.survivors), *look.elders]:
            self.counts[held.place, held.slot] += 1
            self.nbytes[held.place, held.slot] += held.nbytes
            self.by_place[held.place] += 1


def growth(
    looks: Sequence[Diagnosis], earlier: Sequence[Diagnosis], *, every_run: bool, calls: int = 0
) -> list[Growth]:
    """Find the holders that grew, among those of the last snapshot.

    Args:
        looks: one snapshot before some runs and one after each.
        earlier: the same for much earlier runs, if any. A holder that only went up and down since then did not grow.
        every_run: True to count only holders that have more storages after every run, not only after all of them.
        calls: number of all runs. A holder that grew in each run as it does now has at least half of the product; a
            holder with less was emptied in between.
    """
    comparison = _Comparison(looks, earlier, every_run=every_run, calls=calls)
    grown = []
    for place, survivors in _by_place(looks[-1]).items():
        slots: set[Name] = {survivor.holding.slot for survivor in survivors}
        rising = {slot for slot in slots if comparison.slot_rises((place, slot))}
        fresh = {slot for slot in slots - rising if comparison.is_new((place, slot))}
        named: dict[str | None, set[Name]] = {}
        for slot in rising:  # variables and keys are separate, items of a list are together
            named.setdefault(slot[0], set()).add(slot)
        groups = list(named.values())
        if comparison.takes_more(place, rising):
            groups.append(fresh)
        grown += [comparison.growth(place, survivors, group) for group in groups if group]
    return grown


class _Comparison:
    """Looks in a row, compared."""

    def __init__(
        self, looks: Sequence[Diagnosis], earlier: Sequence[Diagnosis], *, every_run: bool, calls: int
    ) -> None:
        self._points = [_Behind(look) for look in looks]
        self._before = [_Behind(look) for look in earlier]
        self._every_run = every_run
        self._periods = calls / max(1, len(looks) - 1)

    def slot_rises(self, slot: Slot) -> bool:
        """Return True if one reference leads to more storages, or to a larger one after every run."""
        sizes, earlier_sizes = ([point.nbytes[slot] for point in series] for series in self._series)
        counts, earlier_counts = ([point.counts[slot] for point in series] for series in self._series)
        grows = _rises(sizes) and _is_above(sizes, earlier_sizes) and sizes[0] > 0 and self._lasts(sizes)
        return grows or (counts[0] > 0 and self._more(counts, earlier_counts))

    def is_new(self, slot: Slot) -> bool:
        """Return True if a reference led nowhere at the first look."""
        return self._points[0].counts[slot] == 0

    def takes_more(self, place: Place, rising: Iterable[Name]) -> bool:
        """Return True if a holder has more storages, without those behind the references that rise themselves."""
        counts, earlier = (
            [point.by_place[place] - sum(point.counts[place, slot] for slot in rising) for point in series]
            for series in self._series
        )
        return self._more(counts, earlier)

    def growth(self, place: Place, survivors: Iterable[Survivor], slots: Collection[Name]) -> Growth:
        """Return what some references of a holder lead to at the last look and did not lead to at the first."""
        first, last = self._points[0], self._points[-1]
        return Growth(
            [survivor for survivor in survivors if survivor.holding.slot in slots],
            sum(last.nbytes[place, slot] - first.nbytes[place, slot] for slot in slots),
            sum(last.counts[place, slot] - first.counts[place, slot] for slot in slots),
        )

    @property
    def _series(self) -> tuple[list[_Behind], list[_Behind]]:
        return self._points, self._before

    def _more(self, counts: Sequence[int], earlier: Sequence[int]) -> bool:
        is_rising = _rises(counts) if self._every_run else counts[-1] > counts[0]
        return is_rising and _is_above(counts, earlier) and self._lasts(counts)

    def _lasts(self, amounts: Sequence[int]) -> bool:
        """Return True if a holder has what it would have, had it grown like this all the time; half is enough."""
        return 2 * amounts[-1] >= (amounts[-1] - amounts[0]) * self._periods


def _by_place(look: Diagnosis) -> dict[Place, list[Survivor]]:
    places: dict[Place, list[Survivor]] = {}
    for survivor in look.survivors:
        places.setdefault(survivor.holding.place, []).append(survivor)
    return places


def _rises(amounts: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(amounts))


def _is_above(amounts: Sequence[int], earlier: Sequence[int]) -> bool:
    return not earlier or min(amounts) > max(earlier)
