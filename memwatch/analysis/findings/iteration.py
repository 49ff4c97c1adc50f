"""Iteration: a variable of a loop holds the last pass's value while the next pass computes its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import DRAG
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_iteration(moment: Moment) -> list[Candidate]:
    """Return the memory that variables hold from one pass of a loop into the next, by variable.

    Its last use lies before the running pass. Memory that this pass still uses, such as a running average, cannot go
    sooner.
    """
    loops, op = moment.evidence.loops, moment.op
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(DRAG)
        if not moment.is_output(allocation)
        and not loops.is_needed_in_another_pass(allocation, op)
        and loops.is_made_anew(allocation, op)
        and loops.is_left_over(allocation, op)
    )
    return by_holder(FindingKind.ITERATION, held, moment.facts.allocations)
