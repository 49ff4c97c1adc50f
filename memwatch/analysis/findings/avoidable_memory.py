"""Memory that another choice would not need, though no reference is at fault.

How the optimizer steps, in what pieces an op gets its input, where a tensor is converted: each counts only when it
is a large share of the peak increase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate

if TYPE_CHECKING:
    from memwatch.analysis.findings.kinds import FindingKind
    from memwatch.analysis.findings.moment import Moment
    from memwatch.analysis.holders import Holder


def if_large(
    kind: FindingKind, holder: Holder, allocations: list[int], moment: Moment, least_ratio: float
) -> list[Candidate]:
    """Return one candidate if enough of some allocations is alive at a moment, else none.

    Args:
        kind: the kind of the candidate.
        holder: who keeps the allocations.
        allocations: the pieces of memory, of the whole capture.
        moment: the moment of the peak.
        least_ratio: the least share of the peak increase that must be alive.
    """
    facts = moment.facts
    nbytes = int(facts.allocations.nbytes[[row for row in allocations if moment.alive[row]]].sum())
    if nbytes < least_ratio * max(facts.curve.peak_increase_bytes, 1):
        return []
    return [Candidate(kind, holder, (), allocations, nbytes)]
