"""Graph: a forward whose backward never runs saves tensors for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate, as_one
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import GRAPH_WITHOUT_BACKWARD

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_graph(moment: Moment) -> list[Candidate]:
    """Return all memory that autograd saved for a backward that never runs, as one candidate: one `no_grad` ends it."""
    held = moment.held_by_graphs(FindingKind.GRAPH, GRAPH_WITHOUT_BACKWARD, outlived=False)
    return as_one(FindingKind.GRAPH, held, moment.facts.allocations)
