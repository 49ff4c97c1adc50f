"""Make leaks of explained survivors: one leak for each reference to cut, if the measured runs kept adding to it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Final

from memwatch.added_at import (
    hook_behind,
    leads_to_function,
    lines_that_add,
    lines_that_link,
    lines_that_register,
    words_of,
)
from memwatch.heap.names import with_line
from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.known_leaks import known_leak
from memwatch.kinds.leaks import LeakKind, Remedy
from memwatch.leaks.advice import (
    is_wrapping,
    keeps_values,
    name_of_object,
    remedy_for,
    repeated_reference,
    repeated_stretch,
    stores_tensor,
    strong_object,
)
from memwatch.leaks.cause import (
    cause_of,
    cause_of_thread,
    container_of,
    edit_of,
    holder_of,
    is_registration,
    name_in_series,
    series_of,
)
from memwatch.leaks.excuses import is_latest
from memwatch.leaks.leak import Leak
from memwatch.words.edges import edge_phrase, reference_phrase
from memwatch.words.leaks import advice, hook_phrase, path_lines, site_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from memwatch.heap.paths import Step
    from memwatch.kinds.edges import Edge
    from memwatch.leaks.leak import Survivor
    from memwatch.leaks.new_storages import NewStorage

_FEW: Final = 3
"""With more periods than these, a group is a leak even if the last period has not added to it: the newest tensor may
still be at another place. A guess."""
FEWEST_ADDED: Final = 4
"""A group to which not every period added is a leak only if at least so many runs added to it. A program may keep its
last three checkpoints in a list, which would look the same with fewer runs. A guess."""


_FEWEST_OVERLAPPING: Final = 8
"""Runs from which the median shows what each adds. A guess: in fewer runs, one of four may add twice as much."""
_FEWEST_RISING: Final = 3
"""Runs of which each added more than the one before. Of two, one may have added more by chance. A guess."""


def leaks_of(
    survivors: Iterable[Survivor],
    measured: Sequence[int],
    *,
    per_call: bool,
    periods: Sequence[Collection[int]] | None = None,
    end_s: float | None = None,
    on_leak: Callable[[Leak, list[Survivor]], None] | None = None,
    added: Sequence[Mapping[tuple[str, int], int]] | None = None,
    with_graph: bool = False,
    seldom: bool = False,
) -> list[Leak]:
    """Group survivors into leaks. If one reference holds tensors on two devices, these are two leaks.

    Args:
        survivors: the survivors, each with its holder.
        measured: indices of the measured runs.
        per_call: True to keep only groups to which the runs kept adding, and to count bytes per run.
        periods: sets of runs; at least one run of each set must have added to a leak. By default each measured run is a
            set.
        end_s: the time up to which leaks are held (`time.monotonic()`, seconds); by default now.
        on_leak: called with each leak and its survivors.
        added: for each run, by device and size, the number of storages that it left without replacing dead ones; for
            `per_call` only. Without it the latest value of a name counts as a replacement.
        with_graph: True if the tensors are known to have a graph. By default, their paths show it.
        seldom: True to keep also groups to which only some runs kept adding, see :func:`goes_on`; for `per_call` only.

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
        if per_call:
            nbytes, count, every = _per_addition(kept, _runs(group))
        else:  # a tensor that grew counts with the bytes that it grew by
            nbytes = sum(survivor.storage.nbytes - survivor.storage.replaced_bytes for survivor in group)
            count, every = len(group), 1
        grows = all(survivor.storage.grew for survivor in group)
        leak = leak_of(
            group, nbytes, count, per_call=per_call, end_s=end_s, grows=grows, with_graph=with_graph
        )
        if on_leak is not None:
            on_leak(leak, group)
        leaks.append(replace(leak, every=every, rises=_rises(kept)) if per_call else leak)
    return merge_and_sort(leaks)


def _with_their_loops(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Explain a storage that C code alone holds by a loop that is never freed, if one line made both.

    DistributedDataParallel has such storages: its reducer holds the buckets in C++, and the loop holds the reducer.
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

    The new value of a name replaces the old value, unless the old value lives on in a graph. References do not show
    which is the case, so counts decide: while a run and size have more survivors than the run added storages, a value
    among them is a replacement.
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
    """Return the survivors of a group that the next values may replace, while their graph holds the others.

    Such a survivor is the one value of a name, with others behind the same name. Or it is an entry of a container, if
    graphs hold the others and the container no longer holds an entry of the first run.
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


def merge_and_sort(leaks: Iterable[Leak]) -> list[Leak]:
    """Return leaks in the order of the report, largest first. Merge leaks of one cause that one line makes.

    For example, a table may have a list for each parameter: each list is a leak with the same cause.
    """
    merged: dict[object, list[Leak]] = {}
    for number, leak in enumerate(leaks):
        key = number if leak.site is None else (leak.kind, leak.device, leak.cause, leak.site, leak.every)
        merged.setdefault(key, []).append(leak)
    causes = list(map(_merged, merged.values()))
    of_line: dict[object, list[Leak]] = {}
    for leak in causes:
        of_line.setdefault((leak.kind, leak.device, leak.site), []).append(leak)
    outer_of = {
        id(leak): outer
        for alike in of_line.values()
        for leak in alike
        if (outer := _around(leak, alike)) is not None
    }
    inner: dict[int, list[Leak]] = {}
    for leak in causes:
        outer = leak
        while id(outer) in outer_of:  # the container around a container may be in a third one
            outer = outer_of[id(outer)]
        if outer is not leak:
            inner.setdefault(id(outer), []).append(leak)
    found = [
        _merged([leak, *inner[id(leak)]], leak) if id(leak) in inner else leak
        for leak in causes
        if id(leak) not in outer_of
    ]
    return sorted(found, key=lambda leak: -leak.nbytes)


def _around(leak: Leak, others: Sequence[Leak]) -> Leak | None:
    """Return the leak whose growing container also leads to the container of this leak; None if there is none.

    For example, each call registers a hook, and each hook fills a list of its own. The dictionary of hooks grows, and
    so do the lists. To remove the hooks ends both.

    Args:
        leak: the leak.
        others: the leaks of its kind, its device and its line.
    """
    if leak.kind is not LeakKind.RETAINED or not leak.per_call or leak.cut is None or leak.site is None:
        return None
    end = next((number for number, edge in enumerate(leak.edges) if edge is leak.cut), 0)
    for other in others:
        if other is leak or not other.per_call or other.cut is None:
            continue
        at = next((number for number, edge in enumerate(other.edges) if edge is other.cut), end)
        if at < end and _are_in_series(leak.edges[: at + 1], other.edges[: at + 1]):
            return other
    return None


def _are_in_series(edges: Sequence[Edge], others: Sequence[Edge]) -> bool:
    """Return True if two paths differ only in the key or index of the last reference, which is an entry."""
    return (
        edges[-1].kind.row.is_entry
        and edges[:-1] == others[:-1]
        and series_of(edges[-1]) == series_of(others[-1])
    )


def _merged(leaks: Sequence[Leak], outer: Leak | None = None) -> Leak:
    """Return one leak for several.

    Args:
        leaks: the leaks.
        outer: the one whose reference is cut, if the references to cut differ.
    """
    first = max(leaks, key=lambda leak: leak.nbytes) if outer is None else outer
    if outer is not None:  # each of these containers outlives some additions: its entries may need a cut, too
        inner = (leak.container or leak.holder for leak in leaks if leak is not outer)
        first = replace(first, also=tuple(dict.fromkeys([*first.also, *inner])))
    elif first.kind is LeakKind.RETAINED:
        # the lists of one dictionary have one cause, and the path names one of them
        by_size = sorted(leaks, key=lambda leak: -leak.nbytes)
        beside = (leak.container for leak in by_size if leak.container not in ("", first.container))
        first = replace(first, also=tuple(dict.fromkeys([*first.also, *beside])))
    return replace(
        first,
        nbytes=sum(leak.nbytes for leak in leaks),
        count=sum(leak.count for leak in leaks),
        rises=any(leak.rises for leak in leaks),
        held_s=max(leak.held_s for leak in leaks),
    )


def _rises(group: Iterable[Survivor]) -> bool:
    """Return True if each run added more storages than the run before it."""
    counts = Counter(survivor.storage.run for survivor in group)
    added = [counts[run] for run in sorted(counts)]
    return len(added) >= _FEWEST_RISING and all(before < after for before, after in pairwise(added))


def goes_on(runs: Collection[int], measured: Sequence[int]) -> bool:
    """Return True if runs at about equal distances added to a holder, from the first measured run to the last.

    The largest distance between two such runs counts as the distance of all. So a list of the last few results does not
    count: it has dropped the results of the first runs.

    Args:
        runs: the runs from which the holder still has something.
        measured: all measured runs.
    """
    if not measured or len(runs) < FEWEST_ADDED:
        return False
    ordered = sorted(runs)
    distance = max(after - before for before, after in pairwise(ordered))
    is_repeated = FEWEST_ADDED * distance <= len(measured)
    return is_repeated and ordered[0] - measured[0] <= distance and measured[-1] - ordered[-1] <= distance


def _per_addition(kept: Sequence[Survivor], runs: Collection[int]) -> tuple[int, int, int]:
    """Return the bytes and storages that each addition to a leak has, and n if one of n runs adds to it.

    Threads and tasks that outlive their call make what they leak in later calls. Then some calls add less and others
    more, or all of two calls comes in one. The median is the amount of each call if the sum of all shows the same, up
    to what was under way at the beginning and at the end.

    Args:
        kept: the survivors that did not replace others.
        runs: the runs that added to the leak, those that replaced the value of another one included.
    """
    ordered = sorted(runs)
    every = max(1, round((ordered[-1] - ordered[0]) / max(1, len(ordered) - 1)))
    amounts: Counter[int] = Counter()
    for survivor in kept:
        amounts[survivor.storage.run] += survivor.storage.nbytes
    first, last = min(amounts), max(amounts)
    total, span = sum(amounts.values()), last - first + 1
    if every > 1:  # other runs add nothing, so the size of an addition is that of the tensors of a run
        return total // len(amounts), round(len(kept) / len(amounts)), every
    usual = median_low(amounts.values())
    if span >= _FEWEST_OVERLAPPING and abs(total - usual * span) < 2 * usual:
        run = next(run for run, nbytes in amounts.items() if nbytes == usual)
        return usual, sum(survivor.storage.run == run for survivor in kept), every
    return total // span, max(1, round(len(kept) / span)), every


def _growing(
    groups: list[list[Survivor]], periods: Sequence[Collection[int]], measured: Sequence[int]
) -> list[list[Survivor]]:
    """Return the groups with survivors of every period. Join groups that differ only by where the newest tensor is.

    The newest tensor often has another holder too: a "last result" beside the list of all results. Then neither group
    has survivors of every period. So survivors of one size in all other groups are joined, if together they have
    survivors of every period. The joined group gets the holder of its oldest survivor, because this holder stays.
    """
    grown: list[list[Survivor]] = []
    leftover: dict[tuple[str, int], list[Survivor]] = {}
    for group in groups:
        is_in_periods = _covers(group, periods) or (len(periods) > _FEW and _covers(group, periods[:-1]))
        if is_in_periods or goes_on(_runs(group), measured):
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


def _behind_common_entries(group: list[Survivor]) -> list[Survivor]:
    """Return survivors with another reference to cut, if they have one entry of a container in common.

    A container to which each run adds an entry has one entry for each run. If the survivors of several runs lie behind
    one entry, a container behind it grows. The first call often makes the list to which all calls add, as in a
    `defaultdict(list)`, and then the list is as new as its items.
    """
    runs = _runs(group)
    # behind the only hook of a table, which each call may replace, the advice looks itself
    while len(runs) > 1 and all(map(_is_behind_entry, group)) and not _is_of_hook(group[0]):
        if len({tuple(step.edge for step in _steps_to_cut(each)) for each in group}) > 1:
            break
        of_container: dict[Hashable, list[Survivor]] = {}
        for each in group:
            below = each.steps[len(_steps_to_cut(each)) :]
            entry = next((step for step in below if step.edge.kind.row.is_entry), None)
            if entry is not None:
                moved = replace(each, cut=entry, older_items_follow=False)
                above = tuple(step.edge for step in _steps_to_cut(moved)[:-1])
                of_container.setdefault((above, entry.edge.owner, entry.edge.kind), []).append(moved)
        # the first run also makes objects that stay, such as the layer to which all calls add hooks
        behind = max(of_container.values(), key=lambda found: len(_runs(found)), default=[])
        if len(_runs(behind)) < 2 or not _runs(behind) >= runs - {min(runs)}:
            break
        group = behind
    return group


def _steps_to_cut(survivor: Survivor) -> list[Step]:
    """Return the steps of a path up to the reference to cut."""
    end = next((at for at, step in enumerate(survivor.steps) if step is survivor.cut), -1)
    return survivor.steps[: end + 1]


def _is_of_hook(survivor: Survivor) -> bool:
    """Return True if registering a hook made the reference to cut."""
    edges = [step.edge for step in survivor.steps]
    return survivor.cut is not None and is_registration(survivor.cut.edge, edges)


def _is_behind_entry(survivor: Survivor) -> bool:
    """Return True if the reference to cut of a survivor is an entry that its words tell from the others."""
    edge = None if survivor.cut is None else survivor.cut.edge
    if edge is None or survivor.kind is not LeakKind.RETAINED or survivor.work is not None or survivor.looped:
        return False
    is_only = edge.owner is not None and edge.owner.count == 1
    is_told = is_only or edge.position is not None or name_in_series(edge) == "*"
    return edge.kind.row.is_entry and is_told and bool(_steps_to_cut(survivor))


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
        end_s: the time up to which the leak is held (`time.monotonic()`, seconds); by default now.
        grows: True if the leak is one tensor that becomes larger.
        with_graph: True if the tensors are known to have a graph. By default, their paths show it.
    """
    cause = _cause(_shown(group))  # one call, which does not show such an entry, has the same cause
    if per_call:
        group = _behind_common_entries(group)
    shown = _without_index(_shown(group))
    nearest = _nearest(group, shown)
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
    remedy, name = _of_chain(remedy, shown, group, edges)
    if shown.work is not None:
        remedy = Remedy.THREAD
    elif shown.is_replaced:
        remedy = Remedy.OPTIMIZER_STATE
    elif remedy is Remedy.CLOSURE_OF_OBJECT:
        name = name_of_object(cut, holder_edges)
    elif remedy is Remedy.WEAK_KEYS and shown.key_holder is not None:
        remedy, name = Remedy.KEPT_KEYS, container_of(shown.key_holder) or holder_of(shown.key_holder)[0]
    lines = {id(edge): with_line(edge) for edge in (*edges, *cuts)}
    grows_at = None if cut is None else lines[id(cut)]
    known = known_leak(shown.kind, [lines[id(edge)] for edge in edges], grows_at=grows_at)
    # what an exception or a call keeps goes with it: how a value is stored does not matter there
    is_stored = stores_tensor(cut, edges)
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
            with_graph=keeps_graph and shown.kind.is_reached and is_stored,
            further=[]
            if remedy.row.ends_every_cycle
            else [reference_phrase(lines[id(edge)]) for edge in cuts[1:]],
            is_complete=not any(survivor.has_more_cycles for survivor in group),
            shows_part=shown.kind is LeakKind.RETAINED
            and is_stored
            and _mostly_views(group)
            and _shows_part(group),
            name=name,
            of_objects=shown.kind is LeakKind.RETAINED and not keeps_values(cut, edges),
            strong=strong_object(cut, edges if shown.kind.is_reached else edges[: shown.cycle_length]),
        ),
        tensor=largest.tensor,
        held_s=max(0.0, end_s - min(survivor.storage.time_s for survivor in group)),
        per_call=per_call,
        reference=edge_phrase(cut) if cut else holder,
        keeps_graph=keeps_graph,
        mostly_in_graph=2 * sum(survivor.storage.nbytes for survivor in group if survivor.through_graph)
        > sum(survivor.storage.nbytes for survivor in group),
        edges=tuple(lines[id(edge)] for edge in edges),
        cut=grows_at,
        cycle_length=0 if shown.kind.is_reached else shown.cycle_length,
        branch=shown.branch,
        cause=cause,
        cuts=tuple(lines[id(edge)] for edge in cuts),
        also=_other_holders(group, holder),
        added_at=_added_at(shown, nearest, lines, remedy),
        hook=_hook(shown) if remedy is Remedy.HOOK_PER_CALL else "",
        grows=grows,
        first_bytes=nearest.nbytes,
        one_value=all(survivor.may_be_replaced for survivor in group),
    )


def _added_at(shown: Survivor, nearest: NewStorage, lines: Mapping[int, Edge], remedy: Remedy) -> str:
    """Return the lines of the program that add to what grows, in words; empty if none is known.

    Args:
        shown: the survivor whose path is shown.
        nearest: the storage whose line is shown.
        lines: the references of the path with their lines, by the ids of those without.
        remedy: the remedy.
    """
    if shown.kind is not LeakKind.RETAINED or shown.cut is None or shown.work is not None:
        return ""
    files = [site[0] for site in (nearest.site, nearest.caller) if site is not None]
    edges = [lines[id(step.edge)] for step in shown.steps]
    cut = lines[id(shown.cut.edge)]
    if remedy is Remedy.HOOK_PER_CALL:
        hook = hook_behind(edges, cut)
        return "" if hook is None else words_of(lines_that_register(hook, edges, files))
    find = lines_that_link if remedy.row.is_of_chain else lines_that_add
    found = find(edges, cut, files)
    if nearest.site is not None and [(line.file, line.line) for line in found] == [nearest.site[:2]]:
        return ""  # the line that made the tensor, which the report has
    return words_of(found)


def _hook(shown: Survivor) -> str:
    """Return the function of the hook that each call registers, and the object with it; empty for other callables."""
    edges = [step.edge for step in shown.steps]
    cut = None if shown.cut is None else shown.cut.edge
    hook = hook_behind(edges, cut)
    if hook is None or hook.file is None or hook.line is None:
        return ""
    at = next((at for at, edge in enumerate(edges) if edge is cut), 0)
    # the reference to cut may be that to the table of hooks, as of a tensor without other hooks
    entry = next((at for at in range(at, len(edges)) if leads_to_function(edges[at])), at)
    return hook_phrase(hook.name, hook.file, hook.line, edges[:entry])


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


def _without_index(shown: Survivor) -> Survivor:
    """Return a survivor without the index of the item of a container that grows: it has items of other calls too."""
    cut = shown.cut
    if cut is None or not shown.kind.is_reached or shown.in_place or shown.older_items_follow:
        return shown
    owner = cut.edge.owner
    is_grown = owner is not None and owner.kind is VertexKind.CONTAINER and (owner.count or 0) > 1
    if cut.edge.kind is not EdgeKind.ITEM or not is_grown:
        return shown
    plain = replace(cut, edge=replace(cut.edge, position=None))
    steps = [plain if step is cut else step for step in shown.steps]
    return replace(shown, steps=steps, cut=plain)


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
        return remedy if remedy.row.is_of_container and _gets_objects(shown, group) else Remedy.GRAPH
    if remedy is Remedy.BUFFER and not keeps_graph:
        return Remedy.SUBMODULE  # one more of them: to detach it changes nothing
    # of several submodules, each call adds one. What grows inside of each does not matter
    if remedy.row.is_of_entry and len(_submodules(group)) > 1:
        return Remedy.SUBMODULE
    if remedy.row.is_of_container and shown.registers_itself:
        return Remedy.REGISTRY
    if shown.kind is LeakKind.RETAINED and _mostly_views(group) and not _shows_part(group):
        return Remedy.VIEW_WITH_GRAPH if keeps_graph else Remedy.VIEW
    return remedy


def _submodules(group: Iterable[Survivor]) -> set[str | None]:
    """Return the names of the submodules to which the references to cut of a group lead."""
    cuts = (each.cut.edge for each in group if each.cut is not None and each.kind is LeakKind.RETAINED)
    return {cut.name for cut in cuts if cut.kind is EdgeKind.SUBMODULE}


def _of_chain(
    remedy: Remedy, shown: Survivor, group: list[Survivor], edges: Sequence[Edge]
) -> tuple[Remedy, str | None]:
    """Return the remedy of objects of which each keeps the one before, and the name of the attribute that keeps it.

    A name, or one place of a container, leads to the newest object, and so to all. The remedy of other leaks stays.
    """
    cut = None if shown.cut is None else shown.cut.edge
    if shown.kind is not LeakKind.RETAINED or cut is None:
        return remedy, None
    is_of_place = cut.kind.row.is_entry and _is_one_place(group) and _gets_deeper(group)
    if cut.kind.row.is_entry and not is_of_place:
        return remedy, None
    is_of_value = is_of_place or remedy.row.is_of_attribute or remedy.row.is_of_name
    is_of_value = is_of_value or remedy in (Remedy.BOUND_METHOD, Remedy.OPTIMIZER_STATE)
    repeated = repeated_reference(edges, is_deeper=_gets_deeper(group))
    if is_of_value and repeated is not None:
        return (Remedy.WRAPPERS, None) if is_wrapping(repeated) else (Remedy.CHAIN, repeated.name)
    is_of_items = remedy.row.is_of_container or remedy in (Remedy.ITERATOR, Remedy.PARTIAL)
    stretch = repeated_stretch(edges) if is_of_value or is_of_items else ()
    if stretch and _gets_deeper(group):
        # as a profiler that keeps the method of the profiler before it
        is_method = any(edge.kind is EdgeKind.BOUND_SELF for edge in stretch)
        return Remedy.WRAPPERS if is_method else Remedy.NESTED, None
    return remedy, None


def _is_one_place(group: Iterable[Survivor]) -> bool:
    """Return True if one key or index of a container leads to all survivors."""
    slots = {each.holding.slot for each in group}
    return len(slots) == 1 and slots != {(None, None)}


def _gets_deeper(group: list[Survivor]) -> bool:
    """Return True if each run put the earlier tensors at least one reference farther from the root."""
    lengths: dict[int, int] = {}
    for each in group:
        visible = sum(not step.hidden for step in each.steps)
        lengths[each.storage.run] = min(visible, lengths.get(each.storage.run, visible))
    ordered = [lengths[run] for run in sorted(lengths)]
    return len(ordered) > 1 and all(before > after for before, after in pairwise(ordered))


def _other_holders(group: Iterable[Survivor], holder: str) -> tuple[str, ...]:
    """Return what else keeps tensors of a group, in words, the holder of most bytes first."""
    sizes: Counter[Hashable] = Counter()
    words: dict[Hashable, str] = {}
    for survivor in group:
        for other in survivor.others if survivor.work is None else ():
            # behind one reference to cut lie several tensors, as the values of one dictionary
            text = container_of(other) or holder_of(other)[0]
            key = text if other.cut is None else other.key
            sizes[key] += survivor.nbytes
            words.setdefault(key, text)
    return tuple(words[key] for key, _ in sizes.most_common() if words[key] != holder)


def _gets_objects(shown: Survivor, group: list[Survivor]) -> bool:
    """Return True if a container has an object, such as a task, for each run, and the object leads to the tensors.

    The tensor that the object has may not be among the survivors, for example because another thread made it.
    """
    if shown.cut is None or stores_tensor(shown.cut.edge, [step.edge for step in shown.steps]):
        return False
    owner = shown.cut.edge.owner
    return owner is not None and (owner.count or 0) >= len(_runs(group))


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


def _nearest(group: list[Survivor], shown: Survivor) -> NewStorage:
    """Return the storage with the shortest path, if possible one with a known line.

    Of several, it is the one whose path is shown, or else the largest.
    """
    known = [survivor for survivor in group if survivor.storage.site is not None] or group

    def rank(survivor: Survivor) -> tuple[bool, int, bool, int]:
        is_other = survivor.storage is not shown.storage
        return not survivor.is_named, len(survivor.steps), is_other, -survivor.nbytes

    return min(known, key=rank).storage
