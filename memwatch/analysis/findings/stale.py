"""Stale: an object keeps memory from one iteration into the next, and nothing reads it there.

A module's `last_input`, a class variable, the variables of a kept exception and a suspended generator's batch are
stale memory. The rules for references examine high events of the live curve. Stale memory often does not raise the
peak: the program holds it between two iterations, when a validation or another model needs memory. So this rule
examines the whole recording.

No op reads the best weights so far, nor predictions whose metric numpy computes, though the program needs both. So a
holder is reported only if it repeats: each iteration replaces the value of the previous one, and no iteration reads
an earlier value. The variables of an exception need not repeat, because programs do not read them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.findings.finding import Candidate, by_holder
from memwatch.analysis.holders import HolderKind
from memwatch.analysis.observer import unrecorded_code_ran_while_idle
from memwatch.capture.schema import ACCESSES, NONE
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import KEPT_ON_PURPOSE
from memwatch.words.holders import site_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.moment import Evidence
    from memwatch.analysis.holders import Holder
    from memwatch.capture.columns import IntArray

_FEWEST_REPLACED: Final = 2
"""Results of one line that later iterations replaced unread.

A guess: a single result is a buffer that was filled twice.
"""
_MOST_ASKED: Final = 4
"""Of these, the latest results whose holders are searched.

A guess: each takes up to a millisecond in a capture with many samples.
"""
_FEWEST_CROSSED: Final = 2
"""Ends of iterations that an exception's variable outlives. A guess: one end may lie within a retry."""
# one result of a line has at least this part of the bytes that a finding must bring; a guess
_LEAST_PART: Final = 8
_STATE: Final = ("parameter", "unsharded parameter", "buffer", "optimizer state")
"""A copy of these is kept for later, as the best weights so far."""
_OF_OBJECT: Final = (EdgeKind.ATTRIBUTE, EdgeKind.FIELD)


def find_stale(evidence: Evidence, least_bytes: int) -> list[Candidate]:
    """Return the memory that objects keep across the ends of iterations while nothing reads it, by holder.

    Args:
        evidence: the facts about the whole capture.
        least_bytes: the bytes that one holder must hold at one time to be reported.
    """
    facts = evidence.facts
    if not len(facts.kept_across.ends_ns):
        return []
    claims = []
    for rows in _unread(facts, least_bytes):
        holders = _keeper(evidence, rows)
        if holders:
            claims += [(row, holders) for row in rows.tolist()]
    found = []
    for each in _one_for_each_exception(by_holder(FindingKind.STALE, claims, facts.allocations)):
        spans = _unneeded(evidence, np.sort(np.array(each.allocations)))
        found.append(dataclasses.replace(each, nbytes=_most_at_once(facts, spans), spans=spans))
    return [each for each in found if each.nbytes >= least_bytes]


def _one_for_each_exception(candidates: list[Candidate]) -> list[Candidate]:
    """Join the candidates of the calls on one exception's traceback: the end of the exception frees all of them."""
    joined: dict[object, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: -each.nbytes):
        holder = candidate.holder
        of_exception = holder.kind is HolderKind.EXCEPTION
        key = (holder.kind, holder.subject[0]) if of_exception else holder.key_of_items
        joined[key] = joined[key].joined(candidate) if key in joined else candidate
    return list(joined.values())


def _unread(facts: Facts, least_bytes: int) -> list[IntArray]:
    """Return memory that outlives its iteration and is not read afterwards, one array for each line that made it.

    If a later iteration reads one result of a line, all results of the line are left out.
    """
    allocations, ends_ns = facts.allocations, np.sort(facts.kept_across.ends_ns)
    large = allocations.counted & (allocations.storage != NONE) & (allocations.op != NONE)
    large &= allocations.nbytes * _LEAST_PART >= least_bytes
    rows = np.flatnonzero(large)
    ops = facts.capture.tables["ops"]
    stacks, last = ops["stack"][allocations.op[rows]], facts.use_bounds.last_op[rows]
    rows, stacks, last = (column[stacks != NONE] for column in (rows, stacks, last))
    forever = np.iinfo(np.int64).max
    death_ns = np.where(allocations.death_ns[rows] == NONE, forever, allocations.death_ns[rows])
    end_ns = np.append(ends_ns, forever)[np.searchsorted(ends_ns, allocations.birth_ns[rows], side="right")]
    outlives = death_ns > end_ns
    is_read_later = (last != NONE) & (ops["start_ns"][np.maximum(last, 0)] >= end_ns)
    is_kept = outlives & ~_is_kept_on_purpose(facts, rows)
    is_of_read_line = np.isin(stacks, stacks[is_read_later])
    unread = is_kept & ~is_of_read_line & facts.ends_known[rows]
    unread &= facts.are_read_by_ops_alone(rows)
    return [rows[unread & (stacks == stack)] for stack in np.unique(stacks[unread]).tolist()]


def _is_kept_on_purpose(facts: Facts, rows: IntArray) -> NDArray[np.bool_]:
    """Return which allocations have a role that keeps them, are copies of such ones, or lie in autocast's cache."""
    category, allocations = facts.categories.category, facts.allocations
    found: NDArray[np.bool_] = category.of(rows).isin(KEPT_ON_PURPOSE)
    uses = facts.capture.tables["uses"]
    reads = uses["access"] == ACCESSES.index("read")
    of_state = np.isin(uses["storage"], allocations.storage[category.isin(_STATE)])
    made = allocations.op[rows]
    found |= np.isin(made, uses["op"][reads & of_state]) & ~np.isin(made, uses["op"][reads & ~of_state])
    found |= np.isin(allocations.storage[rows], list(facts.autocast_copies))
    return found


def _keeper(evidence: Evidence, rows: IntArray) -> list[Holder]:
    """Return the holders of one line's results in later iterations. The holder to name comes first. Empty if unknown.

    Args:
        evidence: the facts about the whole capture.
        rows: the results, from the oldest to the newest.
    """
    facts, allocations = evidence.facts, evidence.facts.allocations
    made_ns, death_ns = allocations.birth_ns[rows], allocations.death_ns[rows]
    # each result must die between the next two results: if it lives longer, a window or cache may still read it
    is_replaced = np.zeros(len(rows), dtype=bool)
    is_replaced[:-2] = (
        (death_ns[:-2] > made_ns[1:-1]) & (death_ns[:-2] < made_ns[2:]) & (death_ns[:-2] != NONE)
    )
    needs_exception = is_replaced.sum() < _FEWEST_REPLACED
    asked = np.flatnonzero(_crossed(facts, rows) >= _FEWEST_CROSSED if needs_exception else is_replaced)
    found = []
    for place in sorted({*asked[:_MOST_ASKED].tolist(), *asked[-_MOST_ASKED:].tolist()}):
        row = int(rows[place])
        before = int(allocations.op[rows[place + 1]]) - 1 if is_replaced[place] else NONE
        holders = _last_holders(evidence, row, before)
        if holders is None or unrecorded_code_ran_while_idle(facts, row):
            return []
        found.append([_at_the_store(each) for each in holders if not each.foreign])
    known = [holders for holders in found if holders]
    if len({holders[0].key_of_items for holders in known}) != 1:
        return []
    if needs_exception and known[0][0].kind is not HolderKind.EXCEPTION:
        return []
    return min(known, key=lambda holders: not holders[0].is_likely)


def _last_holders(evidence: Evidence, row: int, before: int) -> list[Holder] | None:
    """Return the last holders of an allocation. Empty without a sample; None if autograd or a brief variable held it.

    When the line has made its next result, a variable may refer to that one, while an object still keeps this one. So
    samples after that do not show whether a variable has this one, and `before` gives a second op to search at.

    Args:
        evidence: the facts about the whole capture.
        row: the allocation.
        before: the last op before the line made its next result; -1 if this result died first.
    """
    facts, death = evidence.facts, int(evidence.facts.allocations.death_event[row])
    last = facts.capture.rows("ops") - 1 if death == NONE else facts.op_at(death)
    for op in (last, before) if before != NONE else (last,):
        if evidence.holders.packs_at(row, op):
            return None
        holders = [each for each in evidence.holders.variables(row, op) if each.may_be_cut]
        if holders:
            return holders if all(_is_lasting(facts, each) for each in holders) else None
    return []


def _crossed(facts: Facts, rows: IntArray) -> IntArray:
    """Return how many iterations end in the life of each allocation."""
    allocations, ends_ns = facts.allocations, np.sort(facts.kept_across.ends_ns)
    death_ns = allocations.death_ns[rows]
    after = np.where(death_ns == NONE, len(ends_ns), np.searchsorted(ends_ns, death_ns))
    return after - np.searchsorted(ends_ns, allocations.birth_ns[rows], side="right")


def _unneeded(evidence: Evidence, rows: IntArray) -> tuple[tuple[int, int, int], ...]:
    """Return the events between which each allocation is useless and only the holder keeps it.

    This begins after its last use, when autograd has dropped it, and when the holder has dropped its former value. If
    a variable of a call still had one of the latest results after the last use, assume that each result is in such a
    variable until its iteration ends.
    """
    facts, saved, allocations = evidence.facts, evidence.saved, evidence.facts.allocations
    free_ns = np.zeros(len(allocations), dtype=np.int64)
    of_storage = saved.storage != NONE
    np.maximum.at(free_ns, saved.storage[of_storage], saved.released_ns[of_storage])
    free_ns = free_ns[allocations.storage[rows]]
    ends_ns = np.append(np.sort(facts.kept_across.ends_ns), np.iinfo(np.int64).max)
    end_ns = ends_ns[np.searchsorted(ends_ns, allocations.birth_ns[rows], side="right")]
    made = allocations.op[rows]
    last_ops = np.maximum(facts.use_bounds.last_op[rows], made)
    stacks, death_ns = facts.capture.tables["ops"]["stack"][made], allocations.death_ns[rows]
    for stack in np.unique(stacks).tolist():
        of_line = np.flatnonzero(stacks == stack)
        if any(_is_in_call(evidence, int(rows[at]), int(last_ops[at])) for at in of_line[-_MOST_ASKED:]):
            free_ns[of_line] = np.maximum(free_ns[of_line], end_ns[of_line])
        before, after = of_line[:-1], of_line[1:]
        is_replaced = (death_ns[after] == NONE) | (death_ns[before] < death_ns[after])
        free_ns[after] = np.maximum(free_ns[after], np.where(is_replaced, death_ns[before], 0))
    starts = np.maximum(
        facts.biographies.last_events(rows), np.searchsorted(facts.curve.time_ns, free_ns, side="right")
    )
    deaths = allocations.death_event[rows]
    ends = np.where(deaths == NONE, len(facts.curve.time_ns), deaths)
    spans = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return tuple(span for span in spans if span[1] < span[2])


def _is_in_call(evidence: Evidence, row: int, op: int) -> bool:
    """Return True if a variable of a call had an allocation at an op."""
    return any(
        len(each.edges) == 1 and each.kind.row.is_of_call for each in evidence.holders.variables(row, op)
    )


def _is_lasting(facts: Facts, holder: Holder) -> bool:
    """Return True if a holder lives longer than an iteration, and is no variable that each pass of a loop replaces."""
    if holder.is_of_array:
        return False
    if holder.kind in (HolderKind.EXCEPTION, HolderKind.GENERATOR, HolderKind.HOOK):
        return True
    head, *way = holder.edges
    if any(edge.kind.row.outlives_iteration for edge in holder.edges):
        return True
    module = head.owner if head.kind is EdgeKind.GLOBAL else None
    if module is not None and module.file not in facts.call_stacks.files_of_running_modules:
        return True  # the body of a running module may have the loop, whose variables are its globals
    classes = facts.module_classes
    of_objects = [edge for edge in way if edge.kind in _OF_OBJECT]
    is_argument = head.kind is EdgeKind.ARGUMENT and bool(of_objects)
    return is_argument or any(edge.owner is not None and edge.owner.name in classes for edge in of_objects)


def _at_the_store(holder: Holder) -> Holder:
    """Return a holder with the line that stores the memory, where that is known."""
    stores = [edge for edge in holder.edges[1:] if edge.kind in (*_OF_OBJECT, EdgeKind.CLASS_ATTRIBUTE)]
    site = site_text(stores[-1]) if stores else ""
    if not site:
        return holder
    return dataclasses.replace(holder, site=site, is_own=stores[-1].is_own)


def _most_at_once(facts: Facts, spans: tuple[tuple[int, int, int], ...]) -> int:
    """Return the most bytes that are useless at one time."""
    if not spans:
        return 0
    rows, starts, ends = np.array(spans).T
    change = np.zeros(len(facts.curve.time_ns) + 1, dtype=np.int64)
    nbytes = facts.allocations.nbytes[rows]
    np.add.at(change, starts, nbytes)
    np.subtract.at(change, ends, nbytes)
    return int(np.cumsum(change).max())
