"""Buckets: DistributedDataParallel keeps the gradients in its buckets, and each parameter keeps its own beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import BUCKETS

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment


def find_buckets(peak: Moment) -> list[Candidate]:
    """Return the gradients that were copied into a bucket that is alive at the peak."""
    facts, categories = peak.facts, peak.facts.categories
    is_bucket = categories.role.isin(["bucket"]) & ~categories.category.isin(["gradient"])
    buckets = np.flatnonzero(is_bucket).tolist()
    if not any(peak.alive[row] for row in buckets):
        return []
    holder = Holder(
        HolderKind.COMMUNICATION,
        BUCKETS,
        _line_that_builds(facts, buckets),
        subject=(FindingKind.BUCKETS,),
        evidence=HolderEvidence.STRUCTURE,
    )
    return alive_then(FindingKind.BUCKETS, holder, _gradients_in(facts, buckets), peak)


def _gradients_in(facts: Facts, buckets: list[int]) -> list[int]:
    """Return the gradients that some op took together with a bucket: the reducer copies each into its place."""
    uses, category = facts.capture.tables["uses"], facts.categories.category
    copies = np.unique(uses["op"][np.isin(uses["storage"], facts.allocations.storage[buckets])])
    copied = np.unique(uses["storage"][np.isin(uses["op"], copies)])
    return [row for row in facts.allocations.rows_of(copied).tolist() if category[row] == "gradient"]


def _line_that_builds(facts: Facts, buckets: list[int]) -> str:
    """Return the line that made the largest bucket outside every module; those made anew are made in a forward."""
    module, made = facts.capture.tables["ops"]["module"], facts.allocations.op
    first = [row for row in buckets if NONE < made[row] < len(module) and module[made[row]] == NONE]
    largest = max(first, key=lambda row: int(facts.allocations.nbytes[row]), default=NONE)
    return str(facts.made_by.line[largest]) if first else ""
