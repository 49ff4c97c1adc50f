"""Void: a variable holds what no op ever uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import VOID
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import HolderKind

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_void(moment: Moment) -> list[Candidate]:
    """Return what is never used, by variable; what lies on an evaluation stack is an item of a list being made."""
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(VOID)
        if variables[0].kind is not HolderKind.EVALUATION_STACK
    )
    return by_holder(FindingKind.VOID, held, moment.facts.allocations)
