"""Output: a variable holds the result of a model through a backward that does not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import DRAG
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_output(moment: Moment) -> list[Candidate]:
    """Return the results of models, as logits, that variables hold in backward after their last use in forward."""
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(DRAG)
        if moment.is_output(allocation)
    )
    return by_holder(FindingKind.OUTPUT, held, moment.facts.allocations)
