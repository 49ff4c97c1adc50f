"""Graph: a forward whose backward never runs saves tensors for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate, as_one
from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import Holder, HolderKind
from memwatch.analysis.saved_tensor_outcomes import SavedTensorOutcome
from memwatch.words.findings import GRAPH_WITHOUT_BACKWARD

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_graph(moment: Moment) -> list[Candidate]:
    """Return what autograd saved for a backward that never comes, all in one: one `no_grad` ends it."""
    line = moment.facts.made_by.line
    held = (
        (
            row,
            moment.graph_holders(
                row,
                Holder(
                    HolderKind.AUTOGRAD_NODE,
                    GRAPH_WITHOUT_BACKWARD,
                    str(line[row]),
                    subject=(FindingKind.GRAPH,),
                ),
            ),
        )
        for row, outcomes in moment.held_by_autograd
        if SavedTensorOutcome.OUTLIVED not in outcomes
    )
    return as_one(FindingKind.GRAPH, held, moment.facts.allocations)
