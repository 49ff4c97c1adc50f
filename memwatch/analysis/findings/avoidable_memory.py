"""Memory that another choice would avoid. Its references are not at fault.

The choices are the optimizer's step, the pieces of an op's input, and the place of a conversion. One place decides
for all findings whether a change is worth it, by how far the peak would fall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment
    from memwatch.analysis.holders import Holder
    from memwatch.kinds.findings import FindingKind


def alive_then(kind: FindingKind, holder: Holder, allocations: list[int], moment: Moment) -> list[Candidate]:
    """Return one candidate if some allocations are alive at a moment, else none.

    Args:
        kind: the kind of the candidate.
        holder: who keeps the allocations.
        allocations: the pieces of memory, of the whole capture.
        moment: the moment of the peak.
    """
    alive = [row for row in allocations if moment.alive[row]]
    nbytes = int(moment.facts.allocations.nbytes[alive].sum())
    return [Candidate(kind, holder, (), allocations, nbytes)] if nbytes else []
