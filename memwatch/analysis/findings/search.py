"""Search for findings: apply the rules at the highest event, then at the next.

At the highest event every rule names its candidates. Without their bytes another event is the highest. This repeats
until the rules find nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.findings.avoidable import AVOIDABLE
from memwatch.analysis.findings.candidate import in_own_code, spared_bytes
from memwatch.analysis.findings.finding import LEAST_RATIO, Finding
from memwatch.analysis.findings.growth import find_growth
from memwatch.analysis.findings.held import HELD
from memwatch.analysis.findings.idle_gradients import IdleGradients
from memwatch.analysis.findings.loops import Loops
from memwatch.analysis.findings.moment import Evidence, Moment
from memwatch.analysis.findings.ranking import rank
from memwatch.analysis.findings.stale import find_stale
from memwatch.analysis.saved_tensors import SavedTensorOutcomes
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.holders import HolderKey, Holders
    from memwatch.analysis.saved_tensors import SavedTensors

_MAX_ROUNDS: Final = 64  # moments that are searched, the highest first; a guess
_LEAST_PART: Final = (
    8  # a candidate of one event has at least this part of the bytes that a finding must bring; a guess
)


def find(facts: Facts, holders: Holders, saved: SavedTensors) -> list[Finding]:
    """Return the changes that would lower the peak, largest first. Without recorded uses the list is empty."""
    if facts.capture.lacks("uses"):
        return []
    outcomes = SavedTensorOutcomes(facts, saved)
    evidence = Evidence(facts, holders, saved, outcomes, Loops(facts), IdleGradients(facts))
    least_bytes = max(int(facts.curve.peak_increase_bytes * LEAST_RATIO), 1)
    found = rank(_candidates(evidence, least_bytes), facts, least_bytes)
    return sorted([*found, *find_growth(facts, holders, least_bytes)], key=lambda finding: -finding.nbytes)


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
        live -= spared_bytes(candidate, facts)
    for _ in range(_MAX_ROUNDS):
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
            live -= spared_bytes(candidate, facts)
    return [*found.values(), *_avoidable(evidence, taken)]


def _held_at(moment: Moment, least_bytes: int) -> list[Candidate]:
    """Return the candidates of the rules for references at a moment, in the order of the first allocation."""
    found = _that_users_can_mend((candidate for rule in HELD for candidate in rule(moment)), moment.facts)
    large = [candidate for candidate in found if candidate.nbytes * _LEAST_PART >= least_bytes]
    return sorted(large, key=lambda candidate: candidate.allocations[0])


def _avoidable(evidence: Evidence, taken: set[int]) -> list[Candidate]:
    """Return the candidates of the rules for avoidable memory at the peak. Leave out explained memory."""
    peak = Moment(evidence, evidence.facts.curve.peak_event)
    found = _that_users_can_mend((candidate for rule in AVOIDABLE for candidate in rule(peak)), peak.facts)
    return [candidate.without(taken) for candidate in found]


def _that_users_can_mend(candidates: Iterable[Candidate], facts: Facts) -> list[Candidate]:
    return [mine for candidate in candidates if (mine := in_own_code(candidate, facts)) is not None]
