"""Candidates and findings: memory that one holder keeps for one reason, and a change that lowers the peak.

A rule returns candidates. A candidate becomes a finding if the peak is lower without its bytes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders import Holder, HolderKey, HolderKind
from memwatch.analysis.holders.holder import of_any_item
from memwatch.capture.schema import IN_BACKWARD, NONE
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.own_code import CodeOwner
from memwatch.text import ShownAsText
from memwatch.words import findings as words
from memwatch.words.holders import site_text
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import Columns, IntArray
    from memwatch.capture.paths import Path


@dataclass(frozen=True)
class Candidate:
    """The result of a rule. It becomes a finding if the peak is lower without its bytes."""

    kind: FindingKind
    holder: Holder
    others: tuple[Holder, ...]  # who else holds the first of the allocations
    allocations: list[int]
    nbytes: int  # most of them at one event
    spares: IntArray | None = field(default=None, repr=False, compare=False)
    """Bytes per event that would not be live, where they are not those of the allocations' own lives."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """Allocation, first event and the event after the last, where it would not be live; empty if `kind` tells."""
    stored: frozenset[int] = frozenset()
    """Of a graph: the allocations that the holder also keeps without the graph, such as a result in a list."""

    def joined(self, other: Candidate) -> Candidate:
        """Return this candidate with the allocations of another one, found at another event."""
        allocations = self.allocations + other.allocations
        nbytes, spans = max(self.nbytes, other.nbytes), (*self.spans, *other.spans)
        stored = self.stored | other.stored
        return dataclasses.replace(self, allocations=allocations, nbytes=nbytes, spans=spans, stored=stored)

    def without(self, taken: Container[int]) -> Candidate:
        """Return this candidate without some allocations."""
        allocations = [row for row in self.allocations if row not in taken]
        spans = tuple(span for span in self.spans if span[0] not in taken)
        return dataclasses.replace(self, allocations=allocations, spans=spans)


def by_holder(
    kind: FindingKind, claims: Iterable[tuple[int, list[Holder]]], allocations: Allocations
) -> list[Candidate]:
    """Group claims by the first holder of each; items of one list or dictionary count as one holder.

    Args:
        kind: the kind of all of them.
        claims: an allocation and its holders, the one to name first.
        allocations: every piece of memory.
    """
    groups: dict[HolderKey, list[tuple[int, list[Holder]]]] = {}
    for claim in claims:
        groups.setdefault(claim[1][0].key_of_items, []).append(claim)
    return [_candidate(kind, group, allocations) for group in groups.values()]


def as_one(
    kind: FindingKind, claims: Iterable[tuple[int, list[Holder]]], allocations: Allocations
) -> list[Candidate]:
    """Return one candidate for all claims, named by the variable with the most bytes; an autograd node is none.

    A variable that each pass of a loop binds anew has one graph of many that a list keeps.
    """
    group = list(claims)
    if not group:
        return []
    candidate = _candidate(kind, group, allocations)
    variables: dict[HolderKey, Holder] = {}
    nbytes: Counter[HolderKey] = Counter()
    for row, holders in group:
        for holder in holders:
            if holder.kind is not HolderKind.AUTOGRAD_NODE:
                variables.setdefault(holder.key_of_items, holder)
                nbytes[holder.key_of_items] += int(allocations.nbytes[row])
    largest = max(variables, key=lambda key: nbytes[key], default=None)
    if largest is None:
        return [candidate]
    if variables[largest].is_variable_of_ended_call:
        # a traceback keeps the calls that raised, with the graphs of their variables
        kept = [key for key, holder in variables.items() if holder.kept_exception]
        largest = max(kept, key=lambda key: nbytes[key], default=largest)
    return [dataclasses.replace(candidate, holder=variables[largest])]


def _candidate(
    kind: FindingKind, group: list[tuple[int, list[Holder]]], allocations: Allocations
) -> Candidate:
    # of linked objects, the path from a variable shows the links
    _, (holder, *others) = min(
        group,
        key=lambda claim: (not (claim[1][0].links_objects and claim[1][0].site), not claim[1][0].is_likely),
    )
    held = [allocation for allocation, _ in group]
    if len({holders[0].key for _, holders in group}) > 1:
        holder = of_any_item(holder)
    return Candidate(kind, holder, tuple(others), held, int(allocations.nbytes[held].sum()))


def in_own_code(candidate: Candidate, facts: Facts) -> Candidate | None:
    """Return a candidate with a line of the program; None if only torch's or a package's author could follow it.

    Where no code is the program's own, the lines of installed packages count too. This is so if a package's own command
    runs, or the tests of an installed package.
    """
    holder, has_program_code = candidate.holder, facts.call_stacks.has_program_code
    file = holder.site.rpartition(":")[0]
    owner = CodeOwner(facts.call_stacks.owner_of_file.get(file, CodeOwner.PROGRAM))
    if owner == CodeOwner.PROGRAM and not holder.foreign:
        return candidate
    if not has_program_code and owner.calls_torch:
        return candidate
    made_by = facts.made_by
    own_lines = (made_by.own_line if has_program_code else made_by.line)[candidate.allocations]
    line = next((str(line) for line in own_lines if line), "")
    if not candidate.kind.row.is_mended_by_callers or not line:
        return None
    return dataclasses.replace(candidate, holder=dataclasses.replace(holder, site=line, is_own=True))


def spared_bytes(candidate: Candidate, facts: Facts) -> IntArray:
    """Return, per event, the bytes that would not be live if the program followed the finding's advice."""
    change: IntArray = np.zeros(len(facts.curve.live_bytes), dtype=np.int64)
    spare(change, candidate, facts)
    return -change


def spare(live_bytes: IntArray, candidate: Candidate, facts: Facts) -> None:
    """Take the bytes that a candidate would spare off the live bytes of each event."""
    if candidate.spares is not None:
        live_bytes -= candidate.spares
        return
    starts, ends, nbytes = _spared_stretches(candidate, facts)
    if not len(starts):
        return
    # a candidate of one moment spares few of the events of a long run
    first, last = int(starts.min()), int(ends.max())
    change = np.zeros(last - first + 1, dtype=np.int64)
    np.add.at(change, starts - first, nbytes)
    np.subtract.at(change, ends - first, nbytes)
    live_bytes[first:last] -= np.cumsum(change)[:-1]


def _spared_stretches(candidate: Candidate, facts: Facts) -> IntArray:
    """Return the first events, the events after the last, and the bytes that would not be live between them.

    A candidate may give the stretch of time itself. Otherwise the kind decides. Most kinds are freed right after
    their last use, and gradients right after they are copied into a bucket. A model's output is freed before the
    backward, because one variable may hold several results. Memory that a graph keeps stays until the calls return
    that got it as an argument. A waiting result is made right before its first use. All others are not made at all.
    """
    allocations, life = facts.allocations, facts.biographies
    if candidate.spans:
        rows, starts, ends = np.array(candidate.spans, dtype=np.int64).T
        return np.stack([starts, ends, allocations.nbytes[rows]])
    found = []
    for row in candidate.allocations:
        start, death = int(allocations.birth_event[row]), int(allocations.death_event[row])
        end = death if death != NONE else len(facts.curve.live_bytes)
        if candidate.kind is FindingKind.OUTPUT:
            start = max(start, _event_of_backward(facts, int(facts.use_bounds.last_op[row])))
        elif candidate.kind is FindingKind.GRAPH:
            start = max(start, life.last_event(row), _event_of_return(facts, row))
        elif candidate.kind.row.is_freed_after_last_use:
            start = max(start, life.last_event(row))
        elif candidate.kind is FindingKind.BUCKETS:
            start = max(start, life.first_event(row))
        elif candidate.kind is FindingKind.LAG:
            end = min(end, life.first_event(row))
        nbytes = int(allocations.nbytes[row])
        if candidate.kind is FindingKind.FLOAT32:
            nbytes //= 2  # the tensor in the lower precision is saved in its place
        if start < end:
            found.append((start, end, nbytes))
    columns: IntArray = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return columns


def ops_until_return(calls: Columns | Mapping[str, IntArray], made: int, last_op: int) -> int:
    """Return how many ops had started when the last call returned that was given an allocation, or its last op.

    The caller keeps an argument in a variable until then.

    Args:
        calls: the table, or the columns `start_op` and `end_op` of some of its rows.
        made: the op that made the allocation.
        last_op: the last op that uses it.
    """
    was_given = (calls["start_op"] > made) & (calls["start_op"] <= last_op) & (calls["end_op"] > last_op)
    return int(calls["end_op"][was_given].max(initial=last_op + 1))


def _event_of_return(facts: Facts, row: int) -> int:
    """Return the event at which the last call returned that was given an allocation; 0 if no op uses it."""
    last_op, starts_ns = int(facts.use_bounds.last_op[row]), facts.capture.tables["ops"]["start_ns"]
    if last_op == NONE:
        return 0
    op = ops_until_return(facts.capture.tables["calls"], int(facts.allocations.op[row]), last_op)
    if op >= len(starts_ns):
        return len(facts.curve.live_bytes)
    return int(np.searchsorted(facts.curve.time_ns, starts_ns[op]))


def _event_of_backward(facts: Facts, op: int) -> int:
    """Return the first event of the backward after an op."""
    phases, starts_ns = (facts.capture.tables["ops"][name] for name in ("phase", "start_ns"))
    of_backward = np.flatnonzero(np.isin(phases[op + 1 :], IN_BACKWARD))
    if not len(of_backward):
        return len(facts.curve.live_bytes)
    return int(np.searchsorted(facts.curve.time_ns, starts_ns[op + 1 + of_backward[0]]))


LEAST_RATIO: Final = 0.05
"""A finding lowers the peak by at least this share of the peak increase. A guess."""
LEAST_SMALL_RATIO: Final = 0.01
"""The share for a small finding, which the summary only mentions. The rules leave out what keeps less than 0.6 % at one
moment (`_LEAST_PART` of `memwatch.analysis.findings.search`). A guess."""


@dataclass(frozen=True)
class Finding(ShownAsText):
    """One change, and the peak after it.

    Attributes:
        kind: why the bytes need not be there, such as ``drag``. It equals its text; `FindingKind` lists all kinds.
        nbytes: its bytes at the peak.
        holder: the holder of these bytes.
        site: `file:line` to edit; "" without a line.
        advice: one sentence.
        path: the retention path, one edge per line.
        predicted_peak_bytes: the peak after this change alone.
        together_peak_bytes: the peak after all findings' changes.
        storages: the storages concerned, by index of `prof.storages`.
        remark: the end of `holder`: its evidence, and other holders.
        change: `advice` without the peak, for a view that shows the peak elsewhere; "" if there is no such text.
        growth_bytes: bytes that each step or each pass of a loop adds to it; 0 if it does not grow.
        edges: the references of `path`, the root's first; empty if other holders keep the bytes too.
        last_used: `file:line` of the program's own code that used the memory last; "" if not known.
        added_at: of a container that grows, `file:line` of each line of the program that adds to it; empty if not
            known.
    """

    kind: FindingKind
    nbytes: int
    holder: str
    site: str
    advice: str
    path: str
    predicted_peak_bytes: int
    together_peak_bytes: int
    storages: tuple[int, ...] = field(repr=False)
    remark: str = field(default="", repr=False)
    change: str = field(default="", repr=False)
    growth_bytes: int = field(default=0, repr=False)
    edges: Path = field(default=(), repr=False, compare=False)
    last_used: str = field(default="", repr=False)
    added_at: tuple[str, ...] = field(default=(), repr=False)

    @property
    def variable(self) -> str:
        """The global variable that `site` sets, if the holder is an attribute of its value; else empty.

        The line of a local variable is the one that its call had reached, which need not set the variable.
        """
        if len(self.edges) < 2 or self.edges[1].kind is not EdgeKind.ATTRIBUTE:
            return ""
        first = self.edges[0]
        is_set_there = first.kind is EdgeKind.GLOBAL and site_text(first) == self.site
        return first.name or "" if is_set_there else ""

    def __str__(self) -> str:
        """Return one line: the variable, the memory that it keeps, the change, and the peak after it."""
        held = words.holder_at(self.holder, short_place(self.site), self.remark, self.variable)
        return words.FINDING.format(holder=held, advice=self.advice)
