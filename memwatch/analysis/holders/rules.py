"""Who holds an allocation at an instant: the rules, in the order in which memwatch asks them.

The first rules of `RULES` read torch's own records: the running op, roles such as parameters, and saved tensors. One of
them also needs a sample, for the variable that keeps a graph alive. Rules that read samples alone come next.
`samples.py` chooses among the samples: one in this op, one before or after it, one of another allocation that the same
calls made, and the stack of a call that still runs. Inferences about allocations that no sample saw come last. If no
rule explains an allocation, its holder is "not seen": a placeholder that gives the op and the line that made it.

Each rule is a function from a case to a holder, or to None if the rule does not apply. The first holder counts.
`tests/truth/test_truth_rules.py` removes each rule and names the programs whose holder is then another one.
`Holders` applies the rules to all allocations that are alive at one event. Two shortcuts serve large captures: roles
name most holders at once, and allocations without any evidence get a placeholder without a search.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, WORKSPACE
from memwatch.analysis.facts.coded import different_rows
from memwatch.analysis.facts.role_times import InRole
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.in_torch import Awaited, PassedOn, Regions
from memwatch.analysis.holders.samples import HolderSamples, are_small, is_small
from memwatch.analysis.saved_tensors import SavedTensorOutcome, SavedTensorOutcomes
from memwatch.capture.schema import ACCESSES, GRADIENT_PREFIX, NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.kinds.roles import ROLE_OF, ROLE_ROWS
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.capture.columns import IntArray

NAMING_ROLES: Final = tuple(row.name for row in ROLE_ROWS if row.holder is not None)
"""The roles that name the holder by themselves, such as that of a parameter."""

_OUTPUT: Final = ACCESSES.index("output")
_NO_PACKS: Final = np.zeros(0, dtype=np.int64)
_INFERENCES: Final = {
    InRole.LATER: Inference.ROLE_LATER,
    InRole.EARLIER: Inference.ROLE_EARLIER,
    InRole.BETWEEN: Inference.ROLE_BETWEEN,
    InRole.UNCONFIRMED: Inference.ROLE_UNCONFIRMED,
}


@dataclass(frozen=True)
class Sources:
    """What the rules read.

    Attributes:
        facts: the facts of the capture.
        saved_tensors: the tensors that autograd saved.
        samples: the recorder's samples.
        regions: the checkpointed regions.
        awaited: the tensors that wait for backward without a recorded pack.
        passed_on: the tensors that torch's C++ code passes on.
    """

    facts: Facts
    saved_tensors: SavedTensors
    samples: HolderSamples
    regions: Regions
    awaited: Awaited
    passed_on: PassedOn
    _given: dict[int, set[int]] = field(default_factory=dict, repr=False)

    @cached_property
    def outcomes(self) -> SavedTensorOutcomes:
        """Whether each saved tensor is still needed."""
        return SavedTensorOutcomes(self.facts, self.saved_tensors)

    @cached_property
    def packs_by_storage(self) -> dict[int, IntArray]:
        """The rows of saved tensors, by storage."""
        storages = self.saved_tensors.storage
        order = np.argsort(storages, kind="stable")
        found, starts = np.unique(storages[order], return_index=True)
        packs = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}
        packs.pop(NONE, None)
        return packs

    def packs_of(self, allocation: int) -> IntArray:
        """Return the saved tensors that lie in an allocation."""
        return self.packs_by_storage.get(int(self.facts.allocations.storage[allocation]), _NO_PACKS)

    def storages_given_to(self, op: int) -> set[int]:
        """Return the storages of an op's arguments."""
        if op not in self._given:
            uses = self.facts.capture.tables["uses"]
            given = (uses["op"] == op) & (uses["access"] != _OUTPUT)
            self._given[op] = set(uses["storage"][given].tolist())
        return self._given[op]


@dataclass(frozen=True)
class Case:
    """One allocation at one event of the live curve, whose holder is asked for.

    Attributes:
        sources: what the rules read.
        allocation: the piece of memory.
        event: the event.
    """

    sources: Sources
    allocation: int
    event: int

    @property
    def facts(self) -> Facts:
        """The facts of the capture."""
        return self.sources.facts

    @cached_property
    def op(self) -> int:
        """The op that began last by the event; -1 before the first op."""
        return self.facts.op_at(self.event)

    @cached_property
    def has_returned(self) -> bool:
        """Whether that op has returned by the event."""
        return int(self.facts.curve.time_ns[self.event]) > int(
            self.facts.capture.tables["ops"]["end_ns"][self.op]
        )

    @property
    def made(self) -> int:
        """The op that made the allocation; -1 if none is known."""
        return int(self.facts.allocations.op[self.allocation])

    @property
    def storage(self) -> int:
        """The storage of the allocation; -1 for memory that is no tensor's."""
        return int(self.facts.allocations.storage[self.allocation])

    @property
    def is_workspace(self) -> bool:
        """Whether a kernel allocated it for its own use, as no tensor."""
        return int(self.facts.allocations.origin[self.allocation]) == WORKSPACE

    @property
    def op_name(self) -> str:
        """The name of the op that made it."""
        return str(self.facts.made_by.op_name[self.allocation])

    @property
    def line(self) -> str:
        """The line that made it."""
        return str(self.facts.made_by.line[self.allocation])

    @property
    def module(self) -> str:
        """The module that made it."""
        return str(self.facts.made_by.module_name[self.allocation])

    @cached_property
    def variables(self) -> list[Holder]:
        """The variables that samples saw hold it, or that are inferred from samples, the program's own first."""
        return variables(self.sources, self.allocation, self.op)

    @cached_property
    def packs(self) -> list[int]:
        """The saved tensors through which autograd holds it."""
        packs, saved = self.sources.packs_of(self.allocation), self.sources.saved_tensors
        if not len(packs):
            return []
        now_ns = int(self.facts.curve.time_ns[self.event])
        are_saved = self.facts.capture.tables["packs"]["time_ns"][packs] <= now_ns
        return unreleased(packs, are_saved, saved.released_ns[packs], now_ns)

    @cached_property
    def reading_op(self) -> Holder | None:
        """The running op, if the allocation is one of its arguments: torch holds them until the op returns."""
        if (
            self.op == NONE
            or self.has_returned
            or self.storage not in self.sources.storages_given_to(self.op)
        ):
            return None
        op_name, line = self.facts.op_name(self.op), self.facts.op_line(self.op)
        text = words.told_by_op(words.READING_OP, op_name)
        seen = HolderEvidence.SEEN
        return Holder(HolderKind.RUNNING_OP, text, line, subject=(op_name,), evidence=seen)

    @cached_property
    def awaited(self) -> Holder | None:
        """The node of autograd's graph that it waits for, if a later backward reads it."""
        return self.sources.awaited.holder(self.allocation, self.op)

    @cached_property
    def checkpoint(self) -> Holder | None:
        """The checkpoint that keeps a tensor, which it computed again, until backward reads the tensor.

        The recorder read this from torch's own frame when the region had run. While the region still runs, its calls
        may hold the tensor too, so the checkpoint is then an inference.
        """
        recomputes, op_name = self.facts.recomputes, self.op_name
        if not recomputes.is_awaited(self.storage, self.op):
            return None
        run, kind, known = recomputes.run_of(self.made), HolderKind.CHECKPOINT, HolderEvidence.STRUCTURE
        if run == NONE:
            text = words.told_by_op(words.TAKEN_BY_REGION, op_name)
            return Holder(kind, text, self.line, subject=(op_name,), evidence=known)
        module = self.module
        text = words.told_by_op(words.RECOMPUTED_IN if module else words.RECOMPUTED, op_name, module)
        holder = Holder(kind, text, self.line, subject=(op_name, module), evidence=known)
        return holder if recomputes.is_over(run, self.op) else holder.inferred(Inference.LATER)


def variables(sources: Sources, allocation: int, op: int) -> list[Holder]:
    """Return the variables that held an allocation while an op ran, the program's own and innermost first.

    Memory that waits for backward is in autograd's graph. So if the samples suggest only the stack of a call, and a
    backward reads the memory later, the list is empty.
    """
    found = sources.samples.variables(allocation, op)
    return [] if _are_guesses(found) and sources.awaited.holder(allocation, op) is not None else found


def _are_guesses(holders: list[Holder]) -> bool:
    return bool(holders) and all(holder.is_guess for holder in holders)


def unreleased(packs: IntArray, are_saved: NDArray[np.bool_], ends: IntArray, now: int) -> list[int]:
    """Return the saved tensors of a list that have not been released: never, or later than now."""
    held: list[int] = packs[are_saved & ((ends == NONE) | (ends > now))].tolist()
    return held


def holder_in_role(facts: Facts, role: str, storage: int, recorded_name: str, op: int) -> Holder | None:
    """Return the holder that a role names, or None if the storage has left the role.

    The holder is inferred if the role itself is, or if the storage is not known to have the role at this op.
    """
    known, kind = facts.role_times.at(storage, role, op), ROLE_OF[role].holder
    if kind is None or known is InRole.ENDED:
        return None
    made_with = Inference.MADE_WITH if ROLE_OF[role].is_inferred else None
    rule = _INFERENCES.get(known, made_with)
    name = recorded_name.removeprefix(GRADIENT_PREFIX)
    # built in one call instead of with `inferred`, because a report may have 100,000 of them
    return Holder(
        kind,
        words.role_holder(role, name),
        subject=(name,),
        evidence=HolderEvidence.STRUCTURE if rule is None else HolderEvidence.INFERRED,
        inference=rule,
    )


def _running_op(case: Case) -> Holder | None:
    is_made_now = case.made == case.op != NONE
    if not is_made_now or case.is_workspace or case.has_returned:
        return None
    text, seen = words.told_by_op(words.RUNNING_OP, case.op_name), HolderEvidence.SEEN
    return Holder(HolderKind.RUNNING_OP, text, case.line, subject=(case.op_name,), evidence=seen)


def _role(case: Case) -> Holder | None:
    role = case.facts.categories.role[case.allocation]
    if role not in NAMING_ROLES:
        return None
    return holder_in_role(case.facts, role, case.storage, case.facts.role_names[case.allocation], case.op)


def _variable_of_graph(case: Case) -> Holder | None:
    """Return the program's variable whose graph keeps an allocation that no backward needs.

    If a later backward reads the memory, the program still needs the variable, and the rule does not apply.
    """
    outcomes, op = case.sources.outcomes, case.op
    if not case.packs or any(outcomes.at(pack, op) is SavedTensorOutcome.NEEDED for pack in case.packs):
        return None
    roots = case.sources.samples.graph_roots(case.allocation, op)
    root = next((root for root in roots if root.is_likely and not root.foreign), None)
    saved = _saved_tensor(case)
    if root is None or saved is None:
        return None
    text = words.KEPT_BY_GRAPH.format(saved=saved.words, root=root.words)
    return dataclasses.replace(root, words=text, subject=(*saved.subject, *root.subject))


def _saved_tensor(case: Case) -> Holder | None:
    if not case.packs:
        return None
    saved, pack, known = case.sources.saved_tensors, case.packs[0], HolderEvidence.STRUCTURE
    node, module, line = (str(column[pack]) for column in (saved.op_name, saved.module, saved.line))
    if saved.of_region[pack]:
        text = (words.REGION_INPUT_OF if module else words.REGION_INPUT).format(module=module)
        return Holder(HolderKind.CHECKPOINT, text, line, subject=(module, line), evidence=known)
    text = words.told_by_op(words.SAVED_FOR_MODULE if module else words.SAVED, node or words.SOME_OP, module)
    roots = case.sources.samples.graph_roots(case.allocation, case.op)
    path = next((root.path for root in roots if root.evidence is HolderEvidence.SEEN), "")
    return Holder(HolderKind.AUTOGRAD_NODE, text, line, path, subject=(node, module), evidence=known)


def _recomputed(case: Case) -> Holder | None:
    checkpoint = case.checkpoint
    return checkpoint if checkpoint is not None and checkpoint.inference is None else None


def _autocast_cache(case: Case) -> Holder | None:
    copied = case.facts.autocast_copies.get(case.storage)
    if copied is None:
        return None
    text, known = words.AUTOCAST_COPY.format(name=copied), HolderEvidence.STRUCTURE
    return Holder(HolderKind.AUTOCAST_CACHE, text, subject=(copied,), evidence=known)


def _region_seen(case: Case) -> Holder | None:
    return case.sources.regions.holder(case.allocation, case.op, case.variables) if case.variables else None


def _argument_instead_of_guess(case: Case) -> Holder | None:
    return case.reading_op if _are_guesses(case.variables) else None


def _variable(case: Case) -> Holder | None:
    if not case.variables:
        return None
    if _are_guesses(case.variables):
        return case.variables[0]
    is_held = case.facts.categories.category[case.allocation] == "held"
    return min(case.variables, key=_order_of_lasting) if is_held else case.variables[0]


def _order_of_lasting(holder: Holder) -> tuple[bool, ...]:
    """Return the sort key for holders of memory that outlives calls.

    The program's own holders come first. Variables of torch's calls, such as `*args`, come after these, because they
    only pass on memory that something else holds. Then likely holders come before inferences, and variables of calls
    come last.
    """
    is_variable = holder.kind.row.is_of_call
    return holder.foreign, holder.is_of_torch, not holder.is_likely, is_variable and not holder.is_inside


def _recomputing(case: Case) -> Holder | None:
    return case.checkpoint


def _region(case: Case) -> Holder | None:
    return case.sources.regions.holder(case.allocation, case.op, ())


def _awaited_argument(case: Case) -> Holder | None:
    return None if case.awaited is None else case.reading_op


def _awaited(case: Case) -> Holder | None:
    return case.awaited


def _kernel(case: Case) -> Holder | None:
    if not case.is_workspace:
        return None
    text, known = words.told_by_op(words.KERNEL, case.op_name), HolderEvidence.STRUCTURE
    return Holder(HolderKind.KERNEL, text, case.line, subject=(case.op_name,), evidence=known)


def _passed_on(case: Case) -> Holder | None:
    found = case.sources.passed_on.holder(case.allocation, case.event)
    if found is None or case.reading_op is None:
        return found
    # the running op got the memory as an argument, so the inferred reference cannot have ended
    return dataclasses.replace(found, evidence=HolderEvidence.SEEN, inference=None)


def _argument(case: Case) -> Holder | None:
    return case.reading_op


def _compiled_code(case: Case) -> Holder | None:
    return case.sources.passed_on.in_compiled_code(case.allocation, case.event)


def _stack_of_call(case: Case) -> Holder | None:
    return case.sources.passed_on.on_stack(case.allocation, case.op)


class Rule(NamedTuple):
    """One way to know who holds an allocation.

    Attributes:
        reason: why its answer is right, in words.
        holder: returns the holder, or None if the rule does not apply.
    """

    reason: str
    holder: Callable[[Case], Holder | None]


RULES: Final = (
    # torch's own records; the third rule also reads a sample
    Rule("an op that has not returned has its own results", _running_op),
    Rule("torch's own tables list parameters, buffers, gradients and optimizer states", _role),
    Rule("no backward needs the saved tensor, and a variable keeps its graph alive", _variable_of_graph),
    Rule("autograd's hooks reported the saved tensor", _saved_tensor),
    Rule("torch's frame has what a checkpoint computed again", _recomputed),
    Rule("autocast keeps its copy of a parameter until it ends", _autocast_cache),
    # samples, in this op or in another
    Rule("only torch's calls around a checkpointed region have it", _region_seen),
    Rule(
        "the running op was given it, and samples suggest only the stack of a call",
        _argument_instead_of_guess,
    ),
    Rule("a sample saw the variable, or saw one like it", _variable),
    # inferences about allocations that samples do not explain
    Rule("a checkpoint that still computes will keep it", _recomputing),
    Rule("torch's calls return the results of a checkpointed region", _region),
    Rule("the running op was given it, and a later backward reads it", _awaited_argument),
    Rule("a later backward reads it, though no pack was recorded", _awaited),
    Rule("a kernel allocated it for its own use", _kernel),
    Rule("torch's C++ code passes it on: to another node, within a step, or within one call", _passed_on),
    Rule("the running op was given it", _argument),
    Rule("compiled code made it and still runs", _compiled_code),
    Rule("samples found it in no variable, and the call that made it still runs", _stack_of_call),
)
"""The rules, in the order in which they are asked."""


def first_answer(case: Case) -> Holder | None:
    """Return the holder that the first rule with an answer names, or None if no rule has one."""
    answers = (rule.holder(case) for rule in RULES)
    return next((holder for holder in answers if holder is not None), None)


class NotSeen:
    """Makes the placeholders for holders that are not seen."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[tuple[object, ...], Holder] = {}

    def of_each(self, allocations: IntArray) -> list[Holder]:
        """Return the placeholders of many allocations, which are of few kinds."""
        facts, every = self._facts, self._facts.allocations
        columns = (
            are_small(facts, allocations), every.thread[allocations], every.op[allocations] != NONE,
            every.origin[allocations], facts.made_by.op_name.codes[allocations], facts.made_by.stack[allocations],
        )  # fmt: skip
        first, of_kind = different_rows([column.astype(np.int64) for column in columns])
        kinds = [self.of(allocation) for allocation in allocations[first].tolist()]
        return [kinds[number] for number in of_kind.tolist()]

    def of(self, allocation: int) -> Holder:
        """Return the placeholder for the holder of an allocation without any evidence."""
        facts, allocations = self._facts, self._facts.allocations
        kind, text = HolderKind.NOT_SEEN, words.NOT_SEEN
        thread = str(facts.strings[allocations.thread[allocation]])
        if is_small(facts, allocation):
            kind, text = HolderKind.NOT_LOOKED_FOR, words.TOO_SMALL
        elif thread:
            text = words.MADE_BY_THREAD
        elif int(allocations.op[allocation]) != NONE:
            text = words.NOT_SEEN_MADE_BY
        elif int(allocations.origin[allocation]) == BASELINE:
            text = words.NOT_SEEN_MADE_BEFORE
        op_name, line = str(facts.made_by.op_name[allocation]), str(facts.made_by.line[allocation])
        key = kind, text, op_name, thread, line
        if key not in self._known:  # many allocations have one
            text = words.told_by_op(text, op_name, thread=thread)
            evidence = HolderEvidence.NONE
            self._known[key] = Holder(kind, text, line, subject=(op_name, thread), evidence=evidence)
        return self._known[key]


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        samples = HolderSamples(facts)
        passed_on = PassedOn(facts, samples)
        self._facts, self._samples, self._not_seen = facts, samples, NotSeen(facts)
        self._sources = Sources(facts, saved, samples, Regions(facts), Awaited(facts), passed_on)

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran, as the function `variables` does."""
        return variables(self._sources, allocation, op)

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation."""
        return self._samples.graph_roots(allocation, op)

    def packs_at(self, allocation: int, op: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation by the end of an op."""
        packs, saved = self._sources.packs_of(allocation), self._sources.saved_tensors
        return unreleased(packs, saved.saved_op[packs] <= op + 1, saved.released_op[packs], op)

    def describe(self, allocations: Sequence[int], event: int) -> list[Holder]:
        """Return one holder for each allocation, at an event of the live curve."""
        rows, op = np.array(allocations, dtype=np.int64), self._facts.op_at(event)
        is_unseen = self._are_without_evidence(rows, op)
        found = np.array([*self._of_roles(rows, op), None], dtype=object)[:-1]
        found[is_unseen] = self._not_seen.of_each(rows[is_unseen])
        return [
            self._one(allocation, event) if holder is None else holder
            for allocation, holder in zip(rows.tolist(), found.tolist(), strict=True)
        ]

    def _one(self, allocation: int, event: int) -> Holder:
        return first_answer(Case(self._sources, allocation, event)) or self._not_seen.of(allocation)

    def _of_roles(self, allocations: IntArray, op: int) -> list[Holder | None]:
        """Return the holders that roles name; None for an allocation without such a role or made by the running op."""
        facts, every = self._facts, self._facts.allocations
        roles = facts.categories.role.of(allocations)
        columns = (roles, every.storage[allocations].tolist(), facts.role_names.of(allocations))
        is_asked = (roles.isin(NAMING_ROLES) & ((every.op[allocations] != op) | (op == NONE))).tolist()
        return [
            holder_in_role(facts, role, storage, name, op) if is_wanted else None
            for role, storage, name, is_wanted in zip(*columns, is_asked, strict=True)
        ]

    def _are_without_evidence(self, allocations: IntArray, op: int) -> NDArray[np.bool_]:
        """Return which allocations have no evidence while an op runs: neither a maker nor a row in a table.

        A program that trains a small model may have 100,000 of them beside it.
        """
        facts, every = self._facts, self._facts.allocations
        has_evidence: NDArray[np.bool_] = every.op[allocations] != NONE
        has_evidence |= facts.categories.role.isin(NAMING_ROLES)[allocations]
        has_evidence |= every.origin[allocations] == WORKSPACE
        tables = (
            self._sources.packs_by_storage, self._samples.storages, facts.autocast_copies, facts.recomputes.awaited,
            self._sources.storages_given_to(op),
        )  # fmt: skip
        for storages in tables:
            has_evidence |= np.isin(every.storage[allocations], list(storages))
        return ~has_evidence
