"""Gradient: the gradients of the last step are alive in the next forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.facts.biographies import DRAG
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE, PHASES
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import GRADIENTS

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_gradient(moment: Moment) -> list[Candidate]:
    """Return the gradients that are alive in forward after their last read.

    The finding's line is the line of the last op that reads them, such as the optimizer's step: they may be freed
    right after it. A gradient from before the block counts if the block frees it without another use.
    """
    facts = moment.facts
    if moment.op < 0 or PHASES[facts.op_phase(moment.op)] != "forward":
        return []
    idle = [*moment.idle(DRAG, "gradient"), *moment.unused_since_entry("gradient")]
    if not idle or _is_in_update(moment):
        return []
    last_op = facts.use_bounds.last_op[idle].max()
    if last_op == NONE:
        # all are from before the block; in the block's own iterations the same line reads the gradients last
        last_op = facts.use_bounds.last_op[facts.categories.category.isin(["gradient"])].max()
    line = "" if last_op == NONE else facts.own_line(int(last_op))
    holders = [Holder(HolderKind.GRADIENT, GRADIENTS, line, evidence=HolderEvidence.STRUCTURE)]
    held = ((allocation, holders) for allocation in idle)
    return by_holder(FindingKind.GRADIENT, held, facts.allocations)


def _is_in_update(moment: Moment) -> bool:
    """Return True while the program's own code, such as an optimizer without `step`, still goes through gradients.

    Gradients that it has passed are alive in this forward only.
    """
    facts, phases = moment.facts, moment.facts.capture.tables["ops"]["phase"]
    last = facts.use_bounds.last_op[moment.alive_of("gradient")]
    later = last[last >= moment.op]
    in_backward = PHASES.index("backward")
    return any((phases[moment.op : op + 1] != in_backward).all() for op in later.tolist())
