"""Autocast: the cache keeps converted copies of weights after their use, until the outermost region ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import AUTOCAST_CACHE

if TYPE_CHECKING:
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment


def find_autocast(peak: Moment) -> list[Candidate]:
    """Return the cached copies that are idle after the peak: neither an op nor autograd needs them."""
    facts, packs_at = peak.facts, peak.evidence.holders.packs_at
    rows = np.flatnonzero(np.isin(facts.allocations.storage, list(facts.autocast_copies))).tolist()
    copies = [row for row in rows if not packs_at(row, peak.op)]
    idle = [row for row in copies if facts.biographies.last_event(row) < peak.event]
    largest = max(idle, key=lambda row: int(facts.allocations.nbytes[row]), default=None)
    if largest is None:
        return []
    holder = Holder(
        HolderKind.AUTOCAST_CACHE,
        AUTOCAST_CACHE,
        str(facts.made_by.line[largest]),
        subject=(FindingKind.AUTOCAST,),
        evidence=HolderEvidence.STRUCTURE,
    )
    return alive_then(FindingKind.AUTOCAST, holder, copies, peak)
