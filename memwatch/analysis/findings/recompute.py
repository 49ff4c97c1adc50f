"""Recompute: a checkpointed region is so large that its recomputed tensors, all alive at once, make the peak."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.findings.smaller_regions import SmallerRegions
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind
from memwatch.own_code import CodeOwner
from memwatch.words.findings import REGION

if TYPE_CHECKING:
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment


def find_recompute(peak: Moment) -> list[Candidate]:
    """Return the memory that the region at the peak recomputes too early, if smaller regions would avoid it."""
    facts = peak.facts
    made = facts.allocations.op[peak.alive]
    runs = facts.recomputes.run_of_op[made[made != NONE]]
    if not (runs != NONE).any():
        return []
    sizes = facts.allocations.nbytes[peak.alive][made != NONE]
    largest = int(np.argmax(np.bincount(runs[runs != NONE], sizes[runs != NONE])))
    sites = facts.places.lines(facts.recomputes.stack)
    site = str(sites[largest])
    if facts.call_stacks.owner_of_file.get(site.rpartition(":")[0]) != CodeOwner.PROGRAM:
        return []  # a library's own region, which users cannot make smaller
    split = SmallerRegions(facts, np.flatnonzero(sites == site).tolist())
    books = HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.CHECKPOINT, REGION, site, is_own=True, subject=(site,), evidence=books)
    found = alive_then(FindingKind.RECOMPUTE, holder, split.spared, peak)
    return [dataclasses.replace(candidate, spares=split.bytes_of_event()) for candidate in found]
