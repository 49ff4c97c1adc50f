"""Void: a variable holds memory that no op ever uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import VOID
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.holders import HolderKind
from memwatch.analysis.other_threads import unrecorded_code_ran
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_void(moment: Moment) -> list[Candidate]:
    """Return memory that is never used, by variable.

    A value on an evaluation stack is an item of a list under construction. Memory that is made while other threads or
    compiled code run may be for them, and their ops are not recorded.
    """
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(VOID)
        if variables[0].kind is not HolderKind.EVALUATION_STACK
        and not unrecorded_code_ran(moment.facts, allocation)
    )
    return by_holder(FindingKind.VOID, held, moment.facts.allocations)
