"""Search for findings: apply the rules at the highest event, then at the next, and rank the candidates.

At the highest event every rule names its candidates. Without their bytes another event is the highest. This repeats
until the rules find nothing more. `rank` keeps the candidates that lower the peak, alone or with the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.forward_ops import op_of_node
from memwatch.analysis.findings.avoidable import AVOIDABLE
from memwatch.analysis.findings.finding import (
    LEAST_RATIO,
    LEAST_SMALL_RATIO,
    Candidate,
    Finding,
    in_own_code,
    spare,
    spared_bytes,
)
from memwatch.analysis.findings.growth import (
    as_growth,
    find_growth,
    grows_over_iterations,
    lines_that_fill,
    rate_bytes,
)
from memwatch.analysis.findings.held import HELD, is_filled_after_uses, without_gathered
from memwatch.analysis.findings.loops import Loops
from memwatch.analysis.findings.moment import Evidence, IdleGradients, Moment
from memwatch.analysis.findings.stale import find_stale
from memwatch.analysis.holders import Holder, HolderKey, HolderKind, Holders
from memwatch.analysis.saved_tensors import SavedTensorOutcomes, SavedTensors
from memwatch.capture.schema import BACKWARD, NONE
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.known_leaks import known_leak
from memwatch.sizes import format_bytes
from memwatch.words import findings as words
from memwatch.words.leaks import known_line
from memwatch.words.places import short_own_place, short_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray

_FEWEST_ROUNDS: Final = 64
_MOST_ROUNDS: Final = 1_000
_MOST_EVENTS: Final = 50_000_000
"""Moments that are searched, the highest first: as many as events of all rounds together allow, within two limits. In a
plain training each step has its own highest moment. The 400 steps of an MLP have 42,399 events and take 400 rounds, in
2.1 s. A guess."""
_LEAST_PART: Final = (
    8  # a candidate of one event has at least this part of the bytes that a finding must bring; a guess
)
_LINES_OF_ONE_NAME: Final = 2
"""If a variable gets tensors from so many lines, each line needs a `del`. More lines fill a container. A guess."""
_PLACE: Final = ("stack", "name")
"""The columns that show whether two ops are the same place of a loop."""
_FEWEST_LIKE: Final = 2
"""Results of one place with a known end, from which the end of a later result follows. A guess."""
_LEAST_SHARE_OF_SMALL: Final = 1 / 2
"""A candidate that matters only with others of its size has at least this share of `least_bytes`, so that two may be
enough. A guess."""
_REPORTED_IF_OLDER: Final = ("gradient", "activation")
"""The categories of memory from before the block that a finding may include."""


def most_bytes(facts: Facts) -> int:
    """Return the bytes that no finding can exceed.

    The rules report memory that the block made. Of older memory they report gradients and saved activations only.
    """
    own_bytes = facts.curve.peak_increase_bytes
    if not facts.curve.baseline_bytes:
        return own_bytes
    allocations = facts.allocations
    is_older = allocations.counted & (allocations.birth_event == NONE)
    is_older &= facts.categories.category.isin(_REPORTED_IF_OLDER)
    return own_bytes + int(allocations.nbytes[is_older].sum())


class Findings:
    """The findings of one recording: those that lower the peak by enough, and smaller ones.

    Args:
        facts: the facts of the capture.
        holders: the holders of all memory.
        saved: the tensors that autograd saved.
    """

    def __init__(self, facts: Facts, holders: Holders, saved: SavedTensors) -> None:
        self._facts, self._holders = facts, holders
        self._candidates: list[Candidate] = []
        if facts.capture.lacks("uses"):
            return
        outcomes = SavedTensorOutcomes(facts, saved)
        evidence = Evidence(facts, holders, saved, outcomes, Loops(facts), IdleGradients(facts))
        self._loops = evidence.loops
        self._candidates = _candidates(evidence, self._least_bytes(LEAST_RATIO))

    def _least_bytes(self, ratio: float) -> int:
        return max(int(self._facts.curve.peak_increase_bytes * ratio), 1)

    @cached_property
    def large(self) -> list[Finding]:
        """The changes that would lower the peak by enough, largest first. Without recorded uses there is none."""
        return self._at_least(LEAST_RATIO)

    @cached_property
    def small(self) -> list[Finding]:
        """The changes that would lower the peak by less, largest first, down to `LEAST_SMALL_RATIO`."""
        known = {row for finding in self.large for row in finding.storages}
        is_known_to_grow = any(finding.growth_bytes for finding in self.large)
        most_bytes = self._facts.curve.peak_bytes - self._least_bytes(LEAST_SMALL_RATIO)
        return [
            finding
            for finding in self._at_least(LEAST_SMALL_RATIO)
            if finding.predicted_peak_bytes <= most_bytes
            and known.isdisjoint(finding.storages)
            and not (is_known_to_grow and finding.growth_bytes)
        ]

    def _at_least(self, ratio: float) -> list[Finding]:
        if self._facts.capture.lacks("uses"):
            return []
        least_bytes = self._least_bytes(ratio)
        found = rank(self._candidates, self._facts, self._loops, least_bytes)
        found += find_growth(self._facts, self._holders, least_bytes)
        return sorted(found, key=lambda finding: -finding.nbytes)


def _candidates(evidence: Evidence, least_bytes: int) -> list[Candidate]:
    """Return the candidates of all moments. Candidates of one kind and holder are joined."""
    facts = evidence.facts
    live = facts.curve.live_bytes.astype(np.int64)
    stale = _that_users_can_mend(find_stale(evidence, least_bytes), facts)
    found: dict[tuple[FindingKind, HolderKey | None], Candidate] = {
        (candidate.kind, candidate.holder.key): candidate for candidate in stale
    }
    taken = {row for candidate in stale for row in candidate.allocations}
    for candidate in stale:
        spare(live, candidate, facts)
    rounds = _MOST_EVENTS // max(len(live), 1)
    for _ in range(max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, rounds))):
        event = facts.curve.peak_event
        if live[event] < live.max():
            event = int(np.argmax(live))
        if not event:
            break
        fresh = _held_at(Moment(evidence, event, taken), least_bytes)
        if not fresh:
            break
        for candidate in fresh:
            key = (candidate.kind, None if candidate.kind is FindingKind.GRAPH else candidate.holder.key)
            found[key] = found[key].joined(candidate) if key in found else candidate
            taken.update(candidate.allocations)
            spare(live, candidate, facts)
    as_shown = (_as_far_as_shown(candidate, evidence) for candidate in found.values())
    shown = [candidate for candidate in as_shown if candidate is not None]
    taken = {row for candidate in shown for row in candidate.allocations}
    return [*shown, *_avoidable(evidence, taken)]


def _as_far_as_shown(candidate: Candidate, evidence: Evidence) -> Candidate | None:
    """Return a candidate without the memory whose end the recording does not show; None if nothing is left.

    If the recording was cut off, the program may have been about to use the memory that was alive then. Two kinds of
    such memory stay in the candidate:

    - A series that grew over several whole iterations. It is growth, whatever the program does with it later.
    - An allocation like several that ended: in earlier iterations, the same lines made them and used them last.
    """
    facts, rows = evidence.facts, candidate.allocations
    if not candidate.kind.row.needs_known_end or facts.ends_known[rows].all():
        return candidate
    of_ended = candidate.without(
        {row for row in rows if not (facts.ends_known[row] or facts.is_of_ended_iteration(row))}
    )
    if of_ended.allocations and grows_over_iterations(of_ended, facts, evidence.loops):
        shown = of_ended
    else:
        is_shown = _have_known_ends(np.array(rows), facts)
        shown = candidate.without({row for row, each in zip(rows, is_shown, strict=True) if not each})
    if not shown.allocations:
        return None
    nbytes = int(spared_bytes(shown, facts).max(initial=0))
    return dataclasses.replace(shown, nbytes=min(candidate.nbytes, nbytes))


def _have_known_ends(rows: IntArray, facts: Facts) -> NDArray[np.bool_]:
    """Return which allocations ended in the recording, or are like several that did.

    The same lines and ops made these others and used them last. Their sizes may differ, as batches may.
    """
    ops, made_by, last_op = facts.capture.tables["ops"], facts.allocations.op, facts.use_bounds.last_op
    stacks = np.append(ops["stack"], NONE)[np.minimum(made_by, len(ops["stack"]))]
    # smaller results of earlier iterations may be no candidates themselves
    ended = np.flatnonzero(np.isin(stacks, stacks[rows]) & facts.ends_known)
    ended = ended[~np.isin(ended, rows)]
    every = np.concatenate([rows, ended])
    columns = [
        np.append(ops[name], NONE)[np.minimum(op[every], len(ops[name]))]
        for op in (made_by, last_op)
        for name in _PLACE
    ]
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    known = facts.ends_known[every]
    count = np.bincount(group.ravel(), weights=known)
    shown: NDArray[np.bool_] = known | (count[group.ravel()] >= _FEWEST_LIKE)
    return shown[: len(rows)]


def _held_at(moment: Moment, least_bytes: int) -> list[Candidate]:
    """Return the candidates of the rules for references at a moment, in the order of the first allocation."""
    found = _that_users_can_mend((candidate for rule in HELD for candidate in rule(moment)), moment.facts)
    large = [candidate for candidate in found if candidate.nbytes * _LEAST_PART >= least_bytes]
    return sorted(large, key=lambda candidate: candidate.allocations[0])


def _avoidable(evidence: Evidence, taken: set[int]) -> list[Candidate]:
    """Return the candidates of the rules for avoidable memory at the peak, without the allocations in `taken`."""
    peak = Moment(evidence, evidence.facts.curve.peak_event)
    found = _that_users_can_mend((candidate for rule in AVOIDABLE for candidate in rule(peak)), peak.facts)
    return [candidate.without(taken) for candidate in found]


def _that_users_can_mend(candidates: Iterable[Candidate], facts: Facts) -> list[Candidate]:
    return [mine for candidate in candidates if (mine := in_own_code(candidate, facts)) is not None]


class _Spared(NamedTuple):
    """A candidate, and the live bytes that would go with it, per stretch of events."""

    candidate: Candidate
    bytes_of_stretch: IntArray


def rank(candidates: list[Candidate], facts: Facts, loops: Loops, least_bytes: int) -> list[Finding]:
    """Return the candidates that lower the peak as findings, largest first.

    Args:
        candidates: the candidates of all rules.
        facts: the facts of the capture.
        loops: answers about the passes of loops.
        least_bytes: how far a finding has to lower the peak, alone or once all others are mended.
    """
    kept = filter(None, (without_gathered(candidate, facts) for candidate in candidates))
    live, spared = _stretches(list(kept), facts)
    reported, mended = _that_matter(spared, live, least_bytes)
    small = _that_matter_together(spared, reported, live - _sum(mended), least_bytes)
    reported, mended = (
        reported + small,
        [each for each in spared if any(each is other for other in mended + small)],
    )
    together_bytes = int((live - _sum(mended)).max())
    found = [
        _finding(as_growth(candidate, facts, loops), facts, loops, int((live - spared).max()), together_bytes)
        for candidate, spared in _joined_by_exception(
            _with_smaller_parts(_merged(reported), reported, mended)
        )
    ]
    return sorted(found, key=lambda finding: -finding.nbytes)


def _stretches(candidates: list[Candidate], facts: Facts) -> tuple[IntArray, list[_Spared]]:
    """Split the events into stretches that leave the candidates' bytes the same. Return the most live bytes of each.

    There are few such stretches in millions of events, and only the highest event of each can be a peak.
    """
    changes = []
    for candidate in candidates:
        spared = spared_bytes(candidate, facts)
        starts = np.append(0, np.flatnonzero(np.diff(spared)) + 1)
        changes.append((starts, spared[starts]))
    bounds = np.unique(np.concatenate([[0], *(starts for starts, _ in changes)]))
    found = [
        _Spared(candidate, values[np.searchsorted(starts, bounds, side="right") - 1])
        for candidate, (starts, values) in zip(candidates, changes, strict=True)
    ]
    return np.maximum.reduceat(facts.curve.live_bytes, bounds), found


def _sum(spared: list[_Spared]) -> IntArray | int:
    return sum(each.bytes_of_stretch for each in spared)


def _that_matter(
    spared: list[_Spared], live: IntArray, least_bytes: int
) -> tuple[list[_Spared], list[_Spared]]:
    """Return the candidates worth reporting, and all candidates that a user mends by following these reports.

    The second list is longer: who cuts a reference also frees the memory that the same variable holds for another
    reason. A candidate may matter only after others are mended. If these others are dropped from the report, it no
    longer matters. So the test repeats until nothing more is dropped.
    """
    reported, mended, count = spared, spared, -1
    while len(reported) != count:
        count = len(reported)
        together = live - _sum(mended)
        reported = [
            each
            for each in reported
            if _is_stale(each) or _matters(live, together, each.bytes_of_stretch, least_bytes)
        ]
        cut = {holder.key for each in reported for holder in (each.candidate.holder, *each.candidate.others)}
        mended = [each for each in mended if each.candidate.holder.key in cut]
    return reported, mended


def _that_matter_together(
    spared: list[_Spared], reported: list[_Spared], live: IntArray, least_bytes: int
) -> list[_Spared]:
    """Return candidates that are too small alone, but lower the peak by enough together; often none.

    One `del` frees several variables, such as the results of a teacher and of its student.

    Args:
        spared: all candidates.
        reported: those that matter.
        live: the most live bytes of each stretch without these.
        least_bytes: how far they have to lower the peak.
    """
    peak_bytes, known = int(live.max()), set(map(id, reported))
    small = [
        each
        for each in spared
        if id(each) not in known
        and each.candidate.kind.row.del_order is not None
        and peak_bytes - int((live - each.bytes_of_stretch).max()) >= least_bytes * _LEAST_SHARE_OF_SMALL
    ]
    return small if peak_bytes - int((live - _sum(small)).max()) >= least_bytes else []


def _is_stale(spared: _Spared) -> bool:
    """Return True for memory that matters between two iterations, whatever the peak is; it was measured there."""
    return spared.candidate.kind is FindingKind.STALE


def _matters(live: IntArray, together: IntArray, spared: IntArray, least_bytes: int) -> bool:
    """Return True if some bytes lower the peak by enough, alone or once all others are gone."""
    alone = int(live.max()) - int((live - spared).max())
    last = int((together + spared).max()) - int(together.max())
    return max(alone, last) >= least_bytes


def _merged(reported: list[_Spared]) -> list[_Spared]:
    """Join the memory of a variable from this pass of a loop with that from the last pass: one `del` frees both.

    The joined candidate gets the kind whose advice frees the most.
    """
    groups: dict[object, list[_Spared]] = {}
    for each in reported:
        alone = each.candidate.kind.row.del_order is None
        groups.setdefault(id(each) if alone else each.candidate.holder.key, []).append(each)
    merged = []
    for group in groups.values():
        kinds = [each.candidate.kind for each in group]
        first = (
            group[kinds.index(min(kinds, key=lambda kind: kind.row.del_order or 0))]
            if len(group) > 1
            else group[0]
        )
        rest = [each for each in group if each is not first]
        for each in rest:
            first = _Spared(
                first.candidate.joined(each.candidate), first.bytes_of_stretch + each.bytes_of_stretch
            )
        merged.append(first)
    return merged


def _with_smaller_parts(
    merged: list[_Spared], reported: list[_Spared], mended: list[_Spared]
) -> list[_Spared]:
    """Add to each candidate the bytes of unreported candidates of the same variable: one `del` frees these too."""
    known = set(map(id, reported))
    small: dict[HolderKey, list[_Spared]] = {}
    for each in mended:
        if id(each) not in known and each.candidate.kind.row.del_order is not None:
            small.setdefault(each.candidate.holder.key, []).append(each)
    return [
        each
        if each.candidate.kind.row.del_order is None
        else each._replace(
            bytes_of_stretch=each.bytes_of_stretch + _sum(small.get(each.candidate.holder.key, []))
        )
        for each in merged
    ]


def _joined_by_exception(reported: list[_Spared]) -> list[_Spared]:
    """Join the candidates whose memory the traceback of one exception keeps, in variables or in their graphs."""
    groups: dict[object, list[_Spared]] = {}
    for each in reported:
        groups.setdefault(each.candidate.holder.kept_exception or id(each), []).append(each)
    found = []
    for group in groups.values():
        first = max(group, key=lambda each: each.candidate.nbytes)
        for each in group:
            if each is not first:
                joined = first.candidate.joined(each.candidate)
                nbytes = first.candidate.nbytes + each.candidate.nbytes
                first = _Spared(
                    dataclasses.replace(joined, nbytes=nbytes), first.bytes_of_stretch + each.bytes_of_stretch
                )
        found.append(first)
    return found


def _last_used(candidate: Candidate, facts: Facts) -> str:
    """Return the line of the last use; both lines if two lines of the program bind a tensor to one variable."""
    made = facts.made_by.own_line[candidate.allocations].tolist()
    latest = dict(zip(made, candidate.allocations, strict=True))  # of each line
    rows = [latest[line] for line in sorted(latest, key=lambda line: line != candidate.holder.site)]
    if len(rows) != _LINES_OF_ONE_NAME:
        rows = candidate.allocations[-1:]
    ops = [op for op in facts.use_bounds.last_op[rows].tolist() if op != NONE]
    places = dict.fromkeys(short_own_place(facts.op_line(op), facts.own_line(op)) for op in ops)
    return words.AND.join(places)


def _own_line_of_last_use(candidate: Candidate, facts: Facts) -> str:
    op = int(facts.use_bounds.last_op[candidate.allocations].max())
    return "" if op == NONE else facts.own_line(op)


def _is_trained(candidate: Candidate, facts: Facts) -> bool:
    """Return True if a backward ran nodes that the same lines made. The advice to use `no_grad` would end the training.

    It does not count that a backward reads the memory. In a distillation, the backward of the student's loss reads the
    detached result of the teacher, but the teacher's own nodes never run.
    """
    packs, unpacks = facts.capture.tables["packs"], facts.capture.tables["unpacks"]
    saving_op = op_of_node(facts.capture, packs["sequence"])
    is_read = np.isin(packs["pack"], unpacks["pack"][unpacks["released"] == 0])
    run = facts.places.stack_of_op[saving_op[is_read & (saving_op != NONE)]]
    made_by = facts.allocations.op[candidate.allocations]
    kept = facts.made_by.stack[candidate.allocations][np.isin(made_by, saving_op[saving_op != NONE])]
    return bool(np.isin(run, kept[kept != NONE]).any())


def _made_at(candidate: Candidate, facts: Facts) -> str:
    """Return the line that made most of the bytes."""
    rows = candidate.allocations
    lines = [short_own_place(line, own) for line, own in zip(
        facts.made_by.line[rows], facts.made_by.own_line[rows], strict=True
    )]  # fmt: skip
    sums: Counter[str] = Counter()
    for line, nbytes in zip(lines, facts.allocations.nbytes[rows].tolist(), strict=True):
        sums[line] += nbytes
    return sums.most_common(1)[0][0]


def _passes(candidate: Candidate, facts: Facts, loops: Loops) -> int:
    """Return how many passes of a loop made the memory that is still alive at the peak, after its last use."""
    if candidate.kind is not FindingKind.ITERATION:
        return 1
    rows, event = np.array(candidate.allocations), facts.curve.peak_event
    deaths, last_ops = facts.allocations.death_event[rows], facts.use_bounds.last_op[rows]
    left = rows[((deaths > event) | (deaths == NONE)) & (last_ops < facts.op_at_peak)]
    return loops.passes_of(left.tolist(), facts.op_at_peak)


def _is_filled_on(candidate: Candidate, facts: Facts, loops: Loops) -> bool:
    """Return True for a container that the program still fills. So the advice is not to drop the container."""
    if candidate.kind is not FindingKind.DRAG or not rate_bytes(candidate, facts, loops):
        return False
    return is_filled_after_uses(candidate.allocations, facts)


def _other_holders(candidate: Candidate) -> list[str]:
    """Return the texts of the other holders, each once.

    A reference that leads through the holder is left out, because it goes away with the holder.
    """
    holder = candidate.holder
    told = {holder.words: ""}
    for each in candidate.others:
        if not each.foreign and not each.is_through(holder):
            told.setdefault(each.words, each.told)
    return list(told.values())[1:]


def _finding(
    candidate: Candidate, facts: Facts, loops: Loops, alone_bytes: int, together_bytes: int
) -> Finding:
    holder = candidate.holder
    others = _other_holders(candidate)
    also = words.ALSO_HELD.format(holder=holder.told, others=", ".join(others))
    told = also if others else holder.told
    growth_bytes = rate_bytes(candidate, facts, loops)
    rows = np.array(candidate.allocations)
    added_at = lines_that_fill(holder.edges, rows, facts) if growth_bytes else ()
    change = change_of(
        candidate.kind,
        candidate.nbytes,
        holder,
        _last_used(candidate, facts),
        _made_at(candidate, facts),
        is_trained=candidate.kind is FindingKind.GRAPH and _is_trained(candidate, facts),
        has_backward=bool((facts.capture.tables["ops"]["phase"] == BACKWARD).any()),
        rate_bytes=growth_bytes,
        added_at=added_at,
        passes=_passes(candidate, facts, loops),
        is_filled_on=_is_filled_on(candidate, facts, loops),
        stored_bytes=int(
            facts.allocations.nbytes[[*candidate.stored.intersection(candidate.allocations)]].sum()
        ),
    )
    entry = next((edge for edge in holder.edges if edge.kind.row.is_entry), None)
    known = known_leak(candidate.kind, holder.edges, grows_at=entry)
    if known is not None:
        change = words.KNOWN.format(change=change, known=known_line(known))
    advice = with_peaks(
        candidate.kind,
        change,
        peak_bytes=facts.curve.peak_bytes,
        alone_bytes=alone_bytes,
        together_bytes=together_bytes,
        is_cut_off=facts.cut_off is not None,
    )
    return Finding(
        kind=candidate.kind,
        nbytes=candidate.nbytes,
        holder=told,
        site=holder.site,
        advice=advice,
        path=holder.path,
        predicted_peak_bytes=alone_bytes,
        together_peak_bytes=together_bytes,
        storages=tuple(candidate.allocations),
        remark=told.removeprefix(holder.words),
        change=change,
        growth_bytes=growth_bytes,
        edges=() if others else holder.edges,
        last_used=_own_line_of_last_use(candidate, facts),
        added_at=added_at,
    )


def change_of(
    kind: FindingKind,
    nbytes: int,
    holder: Holder,
    last_used: str,
    made_at: str,
    *,
    is_trained: bool,
    has_backward: bool = True,
    rate_bytes: int,
    added_at: tuple[str, ...] = (),
    passes: int = 1,
    is_filled_on: bool = False,
    stored_bytes: int = 0,
) -> str:
    """Return the memory that a finding is about, and the change that frees it.

    Args:
        kind: the kind of finding.
        nbytes: its bytes.
        holder: the holder of these bytes.
        last_used: `file:line` of their last use; "" if unknown.
        made_at: `file:line` that made most of them; "" if unknown.
        is_trained: whether a backward reads tensors that the same lines saved at another time.
        has_backward: whether any backward ran.
        rate_bytes: bytes that each pass of a loop adds; 0 without a series.
        added_at: `file:line` of each line that adds them to a container; empty if not known.
        passes: how many passes of a loop left the memory, where the kind is about passes.
        is_filled_on: whether the holder is a container that gets entries while older ones are not used any more.
        stored_bytes: of a graph, the bytes that the holder keeps without the graph too.
    """
    of_exception = kind is FindingKind.GRAPH and bool(holder.kept_exception)
    is_needed = kind is FindingKind.GRAPH and is_trained and not of_exception
    advice = words.GRAPH_OF_TRAINED_FORWARD if is_needed else _what_to_do(kind, holder)
    if kind is FindingKind.GRAPH and not has_backward:
        advice = words.NO_GRAD_FIRST
    if stored_bytes >= LEAST_RATIO * nbytes:  # `.detach()` would leave a part that matters
        advice = words.STORED_WITH_GRAPH.format(nbytes=format_bytes(stored_bytes))
    if of_exception:
        advice = HolderKind.EXCEPTION.row.drop or words.DROP_ANY
    if is_filled_on:
        advice = words.DROP_ENTRIES
    if kind.row.names_last_use and last_used and not holder.foreign:
        advice = words.LAST_USED.format(advice=advice, site=last_used)
    if kind is FindingKind.GRAPH and made_at not in ("", *map(short_place, (holder.site, *added_at))):
        advice = words.FORWARD_AT.format(advice=advice, site=made_at)
    template = kind.row.headline
    if passes > 1:
        template, advice = words.EARLIER_ITERATIONS, words.EMPTY_EACH_TIME
    headline = template.format(nbytes=format_bytes(nbytes))
    if rate_bytes:
        rate, added = format_bytes(rate_bytes), words.added_phrase(added_at)
        headline = words.PER_ROUND.format(headline=headline, rate=rate, added=added)
    return words.CHANGE.format(headline=headline, advice=advice)


def with_peaks(
    kind: FindingKind,
    change: str,
    *,
    peak_bytes: int,
    alone_bytes: int,
    together_bytes: int,
    is_cut_off: bool = False,
) -> str:
    """Return a change with the peak after it.

    Args:
        kind: the kind of finding.
        change: its change, from `change_of`.
        peak_bytes: the peak.
        alone_bytes: the peak after this change alone.
        together_bytes: the peak after all changes.
        is_cut_off: whether the recording was cut off, so that the peak of the whole program is not known.
    """
    alone, together = format_bytes(alone_bytes), format_bytes(together_bytes)
    if kind.row.is_estimated:
        alone, together = words.ABOUT.format(nbytes=alone), words.ABOUT.format(nbytes=together)
    if alone_bytes < peak_bytes:
        template = words.ALONE if together == alone else words.ALONE_AND_TOGETHER
    elif together == alone:
        return change
    else:
        template = words.TOGETHER
    peak = words.PEAK_SO_FAR if is_cut_off else words.PEAK
    return template.format(change=change, peak=peak, alone=alone, together=together)


def _what_to_do(kind: FindingKind, holder: Holder) -> str:
    drop = holder.kind.row.drop or words.DROP_ANY
    if kind is FindingKind.STALE:
        of_interpreter = any(edge.kind is EdgeKind.LAST_EXCEPTION for edge in holder.edges)
        return words.LAST_EXCEPTION if of_interpreter else holder.kind.row.stale or drop
    if kind is FindingKind.LAG and holder.kind is HolderKind.EVALUATION_STACK:
        return words.LAG_IN_CALL
    is_of_argument = bool(holder.edges) and holder.edges[0].kind is EdgeKind.ARGUMENT
    if kind is FindingKind.OUTPUT and holder.kind is HolderKind.ATTRIBUTE and is_of_argument:
        # The output is an attribute of an argument, such as `self`. The object outlives the call, so no `del` of a
        # variable frees the output.
        return words.OUTPUT_OF_OBJECT
    if kind is FindingKind.VOID and not holder.kind.row.has_own_name:
        return drop
    return kind.row.advice or drop
