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
    """The result of a rule: some allocations, and the reason why the program could avoid them or free them earlier.

    Attributes:
        kind: the reason.
        holder: the holder that the finding names.
        others: the other holders of one of the allocations.
        allocations: the allocations, as rows of `Allocations`.
        nbytes: the most of their bytes that are alive at one event.
        spares: for each event, the bytes that the change frees. If None, `spans` or `kind` decides.
        spans: when the change frees an allocation: the allocation, the first event without it, and the event after the
            last one. If empty, `kind` decides.
        stored: allocations of a graph that the holder also keeps without the graph, such as a result in a list.
    """

    kind: FindingKind
    holder: Holder
    others: tuple[Holder, ...]
    allocations: list[int]
    nbytes: int
    spares: IntArray | None = field(default=None, repr=False, compare=False)
    spans: tuple[tuple[int, int, int], ...] = ()
    stored: frozenset[int] = frozenset()

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
    """Return one candidate for each holder. Items of one list or dictionary count as one holder.

    Args:
        kind: the kind of all candidates.
        claims: pairs of an allocation and its holders. The first holder decides to which candidate the allocation goes.
        allocations: all allocated memory.
    """
    groups: dict[HolderKey, list[tuple[int, list[Holder]]]] = {}
    for claim in claims:
        groups.setdefault(claim[1][0].key_of_items, []).append(claim)
    return [_candidate(kind, group, allocations) for group in groups.values()]


def as_one(
    kind: FindingKind, claims: Iterable[tuple[int, list[Holder]]], allocations: Allocations
) -> list[Candidate]:
    """Return one candidate for all claims. It names the holder with the most bytes that is not an autograd node.

    For example, a list keeps the graphs of all passes of a loop, and a variable of the loop keeps the newest graph.
    Then the candidate names the list.
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
        # The call has ended. If it raised, the traceback of a kept exception has its variables, so name the exception.
        kept = [key for key, holder in variables.items() if holder.kept_exception]
        largest = max(kept, key=lambda key: nbytes[key], default=largest)
    return [dataclasses.replace(candidate, holder=variables[largest])]


def _candidate(
    kind: FindingKind, group: list[tuple[int, list[Holder]]], allocations: Allocations
) -> Candidate:
    # Name first a holder that reaches the memory through linked objects: its path shows the links. Then a likely one.
    _, (holder, *others) = min(
        group,
        key=lambda claim: (not (claim[1][0].links_objects and claim[1][0].site), not claim[1][0].is_likely),
    )
    held = [allocation for allocation, _ in group]
    if len({holders[0].key for _, holders in group}) > 1:
        holder = of_any_item(holder)
    return Candidate(kind, holder, tuple(others), held, int(allocations.nbytes[held].sum()))


def in_own_code(candidate: Candidate, facts: Facts) -> Candidate | None:
    """Return a candidate whose line is the program's own; None if only the author of a library could follow its advice.

    If the program has no code of its own, the lines of installed packages count as the program's. This happens when
    a package's command runs, or the tests of an installed package.
    """
    holder, has_program_code = candidate.holder, facts.call_stacks.has_program_code
    file = holder.site.rpartition(":")[0]
    owner = CodeOwner(facts.call_stacks.owner_of_file.get(file, CodeOwner.PROGRAM))
    if owner == CodeOwner.PROGRAM and not holder.foreign:
        return candidate
    if not has_program_code and owner.calls_torch:
        return candidate
    made_by = facts.made_by
    # the advice can be followed where the program calls the library
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
    """Subtract, from the live bytes of each event, the bytes that a candidate's change would free."""
    if candidate.spares is not None:
        live_bytes -= candidate.spares
        return
    starts, ends, nbytes = _spared_stretches(candidate, facts)
    if not len(starts):
        return
    # change only the events between the first and the last one: most candidates concern few events of a long run
    first, last = int(starts.min()), int(ends.max())
    change = np.zeros(last - first + 1, dtype=np.int64)
    np.add.at(change, starts - first, nbytes)
    np.subtract.at(change, ends - first, nbytes)
    live_bytes[first:last] -= np.cumsum(change)[:-1]


def _spared_stretches(candidate: Candidate, facts: Facts) -> IntArray:
    """Return the stretches of events without some bytes: their first events, the events after their last, their bytes.

    If the candidate has spans, these are the stretches. Otherwise the kind decides what the changed program does with
    each allocation:

    - Most kinds: it frees the memory right after its last use (`is_freed_after_last_use`).
    - `OUTPUT`: it frees the memory when the next backward begins, because the variable may also hold other results.
    - `GRAPH`: it frees the memory when the calls have returned that got it as an argument.
    - `BUCKETS`: it frees a gradient when the gradient has been copied into its bucket.
    - `LAG`: it makes the memory right before its first use.
    - `FLOAT32`: it makes the tensor with half of the bytes.
    - All other kinds: it never makes the memory.
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
            nbytes //= 2  # autograd saves the tensor in the lower precision instead
        if start < end:
            found.append((start, end, nbytes))
    columns: IntArray = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return columns


def ops_until_return(calls: Columns | Mapping[str, IntArray], made: int, last_op: int) -> int:
    """Return the number of ops that had started when the last use of an allocation was over.

    The last use is its last op. If that op ran in module calls that began after the allocation was made, the use lasts
    until these calls have returned: the allocation may be their argument, which the caller's variable keeps alive.

    Args:
        calls: the table `calls`, or the columns `start_op` and `end_op` of some of its rows.
        made: the op that made the allocation.
        last_op: the last op that uses it.
    """
    may_have_it = (calls["start_op"] > made) & (calls["start_op"] <= last_op) & (calls["end_op"] > last_op)
    return int(calls["end_op"][may_have_it].max(initial=last_op + 1))


def _event_of_return(facts: Facts, row: int) -> int:
    """Return the event at which the last use of an allocation was over, see `ops_until_return`; 0 if no op uses it."""
    last_op, starts_ns = int(facts.use_bounds.last_op[row]), facts.capture.tables["ops"]["start_ns"]
    if last_op == NONE:
        return 0
    op = ops_until_return(facts.capture.tables["calls"], int(facts.allocations.op[row]), last_op)
    if op >= len(starts_ns):
        return len(facts.curve.live_bytes)
    return int(np.searchsorted(facts.curve.time_ns, starts_ns[op]))


def _event_of_backward(facts: Facts, op: int) -> int:
    """Return the first event of the next backward after an op."""
    phases, starts_ns = (facts.capture.tables["ops"][name] for name in ("phase", "start_ns"))
    of_backward = np.flatnonzero(np.isin(phases[op + 1 :], IN_BACKWARD))
    if not len(of_backward):
        return len(facts.curve.live_bytes)
    return int(np.searchsorted(facts.curve.time_ns, starts_ns[op + 1 + of_backward[0]]))


LEAST_RATIO: Final = 0.05
"""A finding lowers the peak by at least this share of the peak increase. A guess."""
LEAST_SMALL_RATIO: Final = 0.01
"""The same share for a small finding, which the summary only mentions. A guess.

The search drops each candidate that keeps less than 0.6 % at one moment, see `_LEAST_PART` of
`memwatch.analysis.findings.search`."""


@dataclass(frozen=True)
class Finding(ShownAsText):
    """One change, and the peak after it.

    Attributes:
        kind: the reason, such as ``drag``. It equals its text; `FindingKind` lists all kinds.
        nbytes: the bytes that the holder keeps at the peak.
        holder: the holder of these bytes, in words.
        site: `file:line` to edit; "" without a known line.
        advice: the change, and the peak after it.
        path: the references that keep the memory alive, one per line.
        predicted_peak_bytes: the peak after this change alone.
        together_peak_bytes: the peak after the changes of all findings.
        storages: the storages of these bytes, by index of `prof.storages`.
        remark: the last part of `holder`: how the holder is known, and who else holds the memory.
        change: `advice` without the peak, for a view that shows the peak elsewhere; "" if there is no such text.
        growth_bytes: bytes that each step or each pass of a loop adds; 0 if the memory does not grow.
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
        """The global variable that `site` sets, if the holder is an attribute of the variable's value; "" otherwise.

        For a local variable, `site` is the line that the call had reached. It may not set the variable, so return "".
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
