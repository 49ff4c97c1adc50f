"""The peak without some memory: the bytes that a candidate would spare at every event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.capture.packed import IntArray


def spared_bytes(candidate: Candidate, facts: Facts) -> IntArray:
    """Return, per event, the bytes that would not be live if the program followed the finding's advice.

    A candidate may give the stretch of time itself. Otherwise the kind decides. Most kinds are freed right after
    their last use, and gradients right after they are copied into a bucket. A waiting result is made right before its
    first use. All others are not made at all.
    """
    if candidate.spares is not None:
        return candidate.spares
    allocations, life = facts.allocations, facts.biographies
    change = np.zeros(len(facts.curve.live_bytes) + 1, dtype=np.int64)
    if candidate.spans:
        rows, starts, ends = np.array(candidate.spans, dtype=np.int64).T
        np.add.at(change, starts, allocations.nbytes[rows])
        np.subtract.at(change, ends, allocations.nbytes[rows])
    for row in () if candidate.spans else candidate.allocations:
        start, death = int(allocations.birth_event[row]), int(allocations.death_event[row])
        end = death if death != NONE else len(change) - 1
        if candidate.kind.row.is_freed_after_last_use:
            start = max(start, life.last_event(row))
        elif candidate.kind is FindingKind.BUCKETS:
            start = max(start, life.first_event(row))
        elif candidate.kind is FindingKind.LAG:
            end = min(end, life.first_event(row))
        nbytes = int(allocations.nbytes[row])
        if candidate.kind is FindingKind.FLOAT32:
            nbytes //= 2  # the tensor in the lower precision is saved in its place
        if start < end:
            change[start] += nbytes
            change[end] -= nbytes
    return np.cumsum(change, out=change)[:-1]
