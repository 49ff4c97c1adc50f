"""Drag: a variable holds memory that is never used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import DRAG
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.other_threads import unrecorded_code_ran_while_idle
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_drag(moment: Moment) -> list[Candidate]:
    """Return memory that variables hold after its last use, by variable.

    Memory that a later pass of a loop needs is not drag. Memory that an earlier pass made, and each pass makes anew,
    belongs to the rule `iteration`, or to no rule: the pass that replaces it has just read it. A `del` cannot be
    inside a statement. Another thread, or compiled code, that runs afterwards may use the memory.
    """
    loops, op, facts = moment.evidence.loops, moment.op, moment.facts
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(DRAG)
        if not moment.is_output(allocation)
        and not unrecorded_code_ran_while_idle(facts, allocation)
        and not loops.is_needed_in_another_pass(allocation, op)
        and not loops.is_last_used_in_same_statement(allocation, op)
        and not (loops.is_made_anew(allocation, op) and loops.is_of_earlier_pass(allocation, op))
    )
    return by_holder(FindingKind.DRAG, held, facts.allocations)
