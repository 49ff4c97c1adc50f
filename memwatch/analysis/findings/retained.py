"""Retained: autograd keeps what it saved though the backward that needs it has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import Holder, HolderKind
from memwatch.analysis.saved_tensor_outcomes import SavedTensorOutcome
from memwatch.words.findings import GRAPH_AFTER_BACKWARD

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_retained(moment: Moment) -> list[Candidate]:
    """Return what autograd still holds after the last backward that reads it, by the variable of its graph."""
    line = moment.facts.made_by.line
    held = (
        (
            row,
            moment.graph_holders(
                row,
                Holder(
                    HolderKind.AUTOGRAD_NODE,
                    GRAPH_AFTER_BACKWARD,
                    str(line[row]),
                    subject=(FindingKind.RETAINED,),
                ),
            ),
        )
        for row, outcomes in moment.held_by_autograd
        if SavedTensorOutcome.OUTLIVED in outcomes
    )
    return by_holder(FindingKind.RETAINED, held, moment.facts.allocations)
