"""Lag: computed results wait in a container, or in a half-made call, long before their first use."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from memwatch.analysis.facts.biographies import LAG
from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.analysis.holders import HolderKind
from memwatch.analysis.other_threads import unrecorded_code_ran_while_idle
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.moment import Moment
    from memwatch.analysis.holders import Holder

_LEAST_WAITING: Final = 2  # allocations of one container; a single one is no list; a guess


def find_lag(moment: Moment) -> list[Candidate]:
    """Return computed results that wait, by the container that holds them.

    Memory that one pass of a loop makes for another pass, such as averaged weights, does not wait, because the
    program cannot make it later. While another thread runs, memwatch cannot know whether memory waits, because that
    thread's ops are not recorded.
    """
    loops, category = moment.evidence.loops, moment.facts.categories.category
    held = (
        (allocation, _waiting_places(moment, allocation, variables))
        for allocation, variables in moment.held_by_variables(LAG)
        if category[allocation] != "held"
        and not loops.is_needed_in_another_pass(allocation, moment.op)
        and not unrecorded_code_ran_while_idle(moment.facts, allocation)
    )
    found = ((row, waits) for row, waits in held if waits and loops.is_computed(row))
    return by_holder(FindingKind.LAG, found, moment.facts.allocations)


def _waiting_places(moment: Moment, allocation: int, variables: list[Holder]) -> list[Holder]:
    """Return the containers or the half-made call that hold an allocation; none where a plain variable does too.

    A plain variable is where a value waits that the next lines use; but if the line that made it has made another
    since, the variable holds that one.
    """
    if variables[0].kind is HolderKind.EVALUATION_STACK:
        # results of backward wait in the engine, whatever the call that started it has on its stack
        in_engine = moment.is_of_backward(allocation)
        waits = [] if variables[0].is_inside or in_engine else variables
    else:
        # an argument that torch passes on, as in `*args`, is not in a container of the program
        waits = [each for each in variables if each.is_inside and not (each.foreign or each.is_of_torch)]
    rest = [holder for holder in variables if holder not in waits]
    in_variable = bool(rest) and not any(holder.foreign for holder in rest)
    if in_variable and not moment.evidence.loops.is_rebound(allocation, moment.op):
        return []
    return waits


def without_gathered(candidate: Candidate, facts: Facts) -> Candidate | None:
    """Return a candidate without inputs that one op gathers, such as torch.cat; None if too little waits.

    An op that gathers needs all its inputs at once, whenever they are made. This is known only after all moments
    were searched, when the candidate has all its allocations.
    """
    if candidate.kind is not FindingKind.LAG or not candidate.holder.is_inside:
        return candidate
    first = facts.use_bounds.first_op[candidate.allocations]
    alone = [row for row, op in zip(candidate.allocations, first, strict=True) if (first == op).sum() == 1]
    if len(alone) < _LEAST_WAITING:
        return None
    nbytes = min(candidate.nbytes, int(facts.allocations.nbytes[alone].sum()))
    return dataclasses.replace(candidate, allocations=alone, nbytes=nbytes)
