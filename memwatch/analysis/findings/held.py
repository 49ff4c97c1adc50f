"""Rules for references that outlive their use: a variable or autograd keeps memory that nothing reads any more."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.biographies import DRAG, LAG, VOID
from memwatch.analysis.findings.finding import Candidate, as_one, by_holder
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.analysis.observer import unrecorded_code_ran, unrecorded_code_ran_while_idle
from memwatch.capture.schema import NONE, PHASES
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import EARLIER_MODELS, GRADIENTS, GRAPH_AFTER_BACKWARD, GRAPH_WITHOUT_BACKWARD

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.moment import Moment
    from memwatch.kinds.edges import Edge


def find_void(moment: Moment) -> list[Candidate]:
    """Return memory that is never used, by variable.

    Two kinds of memory are left out. A value on an evaluation stack is an item of a list under construction. And if
    other threads or compiled code ran during the life of the memory, they may have used it without a recorded op.
    """
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(VOID)
        if variables[0].kind is not HolderKind.EVALUATION_STACK
        and not unrecorded_code_ran(moment.facts, allocation)
    )
    return by_holder(FindingKind.VOID, held, moment.facts.allocations)


def find_drag(moment: Moment) -> list[Candidate]:
    """Return memory that variables hold after its last use, by variable.

    These allocations are left out:

    - A later pass of a loop needs it.
    - Each pass of a loop makes it anew, and an earlier pass made this one. The rule `find_iteration` decides about it.
    - The statement that used it last still runs, and a `del` cannot be inside a statement.
    - A running call of a library holds it too, so a `del` frees nothing.
    - Another thread, or compiled code, runs afterwards and may use it.
    """
    loops, op, facts = moment.evidence.loops, moment.op, moment.facts
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(DRAG)
        if not moment.is_output(allocation)
        and not unrecorded_code_ran_while_idle(facts, allocation)
        and not loops.is_needed_in_another_pass(allocation, op)
        and not loops.is_last_used_in_same_statement(allocation, op)
        and not _is_held_by_call_of_library(moment, variables)
        and not _is_in_running_statement(moment, allocation, variables[0])
        and not (loops.is_made_anew(allocation, op) and loops.is_of_earlier_pass(allocation, op))
    )
    return [_freed_at_once(each, facts) for each in by_holder(FindingKind.DRAG, held, facts.allocations)]


def _is_held_by_call_of_library(moment: Moment, variables: list[Holder]) -> bool:
    """Return True if one of the variables that hold the memory belongs to a running call of torch or of a library.

    No `del` in the program frees the memory before this call returns. For example, torch's call of a module keeps the
    arguments until the module returns. If the program has no code of its own, only torch's calls count.
    """
    has_program_code = moment.facts.call_stacks.has_program_code
    return any(
        each.foreign
        and each.is_likely
        and each.kind in (HolderKind.ARGUMENT, HolderKind.LOCAL)
        and (has_program_code or each.is_of_torch)
        for each in variables
    )


def _is_in_running_statement(moment: Moment, allocation: int, holder: Holder) -> bool:
    """Return True if a call's own variable holds an allocation, and the statement that used it last still runs."""
    if len(holder.edges) != 1 or not holder.kind.row.is_of_call:
        return False
    variable = holder.edges[0]
    return moment.evidence.loops.is_last_used_in_running_statement(
        allocation, moment.op, variable
    ) and not _has_a_later_result(moment, allocation, variable)


def _has_a_later_result(moment: Moment, allocation: int, variable: Edge) -> bool:
    """Return True if a variable of the same call holds memory that was made after the last use of an allocation.

    If so, a statement has ended since the last use: the line is in a loop, or it has several statements.
    """
    facts = moment.facts
    made, last_op = facts.allocations.op, int(facts.use_bounds.last_op[allocation])
    later = np.flatnonzero(moment.alive & (made > last_op) & (made <= moment.op))
    return any(
        holder.is_likely and len(holder.edges) == 1 and _are_of_one_call(holder.edges[0], variable)
        for row in later.tolist()
        for holder in moment.evidence.holders.variables(row, moment.op)
    )


def _are_of_one_call(variable: Edge, other: Edge) -> bool:
    """Return True if two variables are of one call, whatever line the call has reached."""
    owner, of_other = variable.owner, other.owner
    if owner is None or of_other is None or not other.kind.row.is_call_variable:
        return False
    return all(getattr(owner, name) == getattr(of_other, name) for name in ("kind", "name", "file", "thread"))


def _freed_at_once(candidate: Candidate, facts: Facts) -> Candidate:
    """Return a candidate that spares its memory from the last use of any of it: one `del` frees a list with its items.

    If the program still fills the container, it needs the container. Then each entry can go after its own last use.
    """
    allocations, rows = facts.allocations, candidate.allocations
    last = max(map(facts.biographies.last_event, rows))
    is_filled_on = is_filled_after_uses(rows, facts)
    end = len(facts.curve.live_bytes)
    spans = []
    for row in rows:
        birth, death = int(allocations.birth_event[row]), int(allocations.death_event[row])
        start = max(birth, facts.biographies.last_event(row) if is_filled_on else last)
        spans.append((row, start, death if death != NONE else end))
    return dataclasses.replace(candidate, spans=tuple(span for span in spans if span[1] < span[2]))


def is_filled_after_uses(rows: list[int], facts: Facts) -> bool:
    """Return True if one of some allocations was made after the last use of another of them."""
    return bool(facts.use_bounds.last_op[rows].min() < facts.allocations.op[rows].max())


def find_iteration(moment: Moment) -> list[Candidate]:
    """Return the memory that variables hold from one pass of a loop into the next, by variable.

    Its last use was before the running pass. Memory that the running pass uses, such as a running average, is needed.
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


def find_output(moment: Moment) -> list[Candidate]:
    """Return the results of models, as logits, that variables hold in backward after their last use in forward."""
    held = (
        (allocation, variables)
        for allocation, variables in moment.held_by_variables(DRAG)
        if moment.is_output(allocation)
    )
    return by_holder(FindingKind.OUTPUT, held, moment.facts.allocations)


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
    """Return the containers or the half-made call that hold an allocation; none if a plain variable holds it too.

    A value that the next lines use is in a plain variable. If the line that made the value has made another since, the
    variable refers to the other one, and does not count.
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

    An op that gathers needs all its inputs at once, so making them later spares nothing. Call this when all moments
    have been searched, because only then the candidate has all its allocations.
    """
    if candidate.kind is not FindingKind.LAG or not candidate.holder.is_inside:
        return candidate
    first = facts.use_bounds.first_op[candidate.allocations]
    alone = [row for row, op in zip(candidate.allocations, first, strict=True) if (first == op).sum() == 1]
    if len(alone) < _LEAST_WAITING:
        return None
    nbytes = min(candidate.nbytes, int(facts.allocations.nbytes[alone].sum()))
    return dataclasses.replace(candidate, allocations=alone, nbytes=nbytes)


def find_gradient(moment: Moment) -> list[Candidate]:
    """Return the gradients that are alive in forward after their last read.

    The finding names the line that reads them last, such as the optimizer's step, because the program can free them
    right after it. A gradient from before the block counts if the block frees it without using it.
    """
    facts = moment.facts
    if moment.op < 0 or PHASES[facts.op_phase(moment.op)] != "forward":
        return []
    of_earlier = set(moment.earlier_models.rows)
    idle = [row for row in moment.idle(DRAG, "gradient") if row not in of_earlier]
    idle += moment.unused_since_entry("gradient")
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
    """Return True while the program's own code updates parameters one by one, as an optimizer without `step` does.

    Such ops count as forward. The gradients that the update has already read are idle only until it ends.
    """
    facts, phases = moment.facts, moment.facts.capture.tables["ops"]["phase"]
    last = facts.use_bounds.last_op[moment.alive_of("gradient")]
    later = last[last >= moment.op]
    in_backward = PHASES.index("backward")
    return any((phases[moment.op : op + 1] != in_backward).all() for op in later.tolist())


def find_set_to_none(moment: Moment) -> list[Candidate]:
    """Return the gradients that hold zeros, or that zeros are about to replace, and that are added to later on."""
    facts, storages = moment.facts, moment.facts.allocations.storage
    row_of = {int(storages[row]): row for row in moment.alive_of("gradient")}
    spans = moment.evidence.idle_gradients.of(row_of)
    is_now = (spans.start <= moment.event) & (moment.event < spans.end)
    idle = sorted({row_of[storage] for storage in spans.storage[is_now].tolist()})
    if not idle:
        return []
    spans = moment.evidence.idle_gradients.of(storages[idle].tolist())
    line = facts.own_line(int(spans.zero_op[0]))
    subject, evidence = (FindingKind.SET_TO_NONE,), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.GRADIENT, GRADIENTS, line, subject=subject, evidence=evidence)
    rows = (row_of[storage] for storage in spans.storage.tolist())
    idle_spans = tuple(zip(rows, spans.start.tolist(), spans.end.tolist(), strict=True))
    nbytes = int(facts.allocations.nbytes[idle].sum())
    return [Candidate(FindingKind.SET_TO_NONE, holder, (), idle, nbytes, spans=idle_spans)]


def find_graph(moment: Moment) -> list[Candidate]:
    """Return all memory that autograd saved for a backward that never runs, as one candidate: one `no_grad` ends it."""
    held = [*moment.held_by_graphs(FindingKind.GRAPH, GRAPH_WITHOUT_BACKWARD, outlived=False)]
    stored = frozenset(row for row, roots in held if moment.is_in_variable_of(row, roots))
    found = as_one(FindingKind.GRAPH, held, moment.facts.allocations)
    return [dataclasses.replace(candidate, stored=stored) for candidate in found]


def find_retained(moment: Moment) -> list[Candidate]:
    """Return the memory that autograd holds after the last backward that reads it, by the call of this backward.

    Several losses may share a part of a graph. Then only the last backward can do without `retain_graph=True`, and it
    frees what all variables of these graphs hold.
    """
    groups: dict[int, list[tuple[int, list[Holder]]]] = {}
    for allocation, roots in moment.held_by_graphs(FindingKind.RETAINED, GRAPH_AFTER_BACKWARD, outlived=True):
        if moment.is_freed_without_retain_graph(allocation):
            groups.setdefault(moment.last_backward_of(allocation), []).append((allocation, roots))
    return [
        candidate
        for group in groups.values()
        for candidate in as_one(FindingKind.RETAINED, group, moment.facts.allocations)
    ]


def find_models(moment: Moment) -> list[Candidate]:
    """Return the models and optimizers that earlier passes trained and that nothing uses again, as one candidate."""
    earlier, facts = moment.earlier_models, moment.facts
    if not earlier.rows:
        return []
    told = EARLIER_MODELS.format(count=earlier.number)
    line, books = facts.own_line(earlier.first_op), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.PARAMETER, told, line, subject=(FindingKind.MODELS,), evidence=books)
    return by_holder(FindingKind.MODELS, ((row, [holder]) for row in earlier.rows), facts.allocations)


HELD: Final = (
    find_models, find_gradient, find_set_to_none, find_graph, find_retained, find_lag, find_void, find_output,
    find_iteration, find_drag,
)  # fmt: skip
"""Rules for references that outlive their use. They run at every high event, and no two claim the same allocation."""
