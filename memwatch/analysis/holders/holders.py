"""Who held each piece of memory at an instant: by its role, by autograd's saved tensors, by the recorder's samples."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.allocations import WORKSPACE
from memwatch.analysis.facts.role_times import InRole
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.regions import Regions
from memwatch.analysis.holders.samples import HolderSamples
from memwatch.analysis.holders.unseen import Awaited, Unseen
from memwatch.analysis.saved_tensors import SavedTensorOutcome, SavedTensorOutcomes
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.kinds.roles import ROLE_OF, ROLE_ROWS
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.capture.columns import IntArray

_NAMING_ROLES: Final = tuple(row.name for row in ROLE_ROWS if row.holder is not None)
_BOOKS: Final = HolderEvidence.STRUCTURE
_NO_PACKS: Final = np.zeros(0, dtype=np.int64)
_INFERENCES: Final = {
    InRole.LATER: Inference.ROLE_LATER,
    InRole.EARLIER: Inference.ROLE_EARLIER,
    InRole.BETWEEN: Inference.ROLE_BETWEEN,
    InRole.UNCONFIRMED: Inference.ROLE_UNCONFIRMED,
}


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        self._facts, self._saved_tensors = facts, saved
        self._samples = HolderSamples(facts)
        self._regions, self._awaited = Regions(facts), Awaited(facts)
        self._unseen = Unseen(facts, self._samples)

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran, the program's own and innermost first.

        A call is not guessed to hold on its stack what waits for backward: the graph has it.
        """
        found = self._samples.variables(allocation, op)
        is_guess = bool(found) and all(holder.is_guess for holder in found)
        return [] if is_guess and self._awaited.holder(allocation, op) is not None else found

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation."""
        return self._samples.graph_roots(allocation, op)

    @cached_property
    def _packs_by_storage(self) -> dict[int, IntArray]:
        storages = self._saved_tensors.storage
        order = np.argsort(storages, kind="stable")
        found, starts = np.unique(storages[order], return_index=True)
        packs = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}
        packs.pop(NONE, None)
        return packs

    def _packs_of(self, allocation: int) -> IntArray:
        """Return the saved tensors that lie in an allocation."""
        return self._packs_by_storage.get(int(self._facts.allocations.storage[allocation]), _NO_PACKS)

    def packs_at(self, allocation: int, op: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation by the end of an op."""
        packs, saved = self._packs_of(allocation), self._saved_tensors
        return _held(packs, saved.saved_op[packs] <= op + 1, saved.released_op[packs], op)

    def _packs_at_event(self, allocation: int, event: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation at an event."""
        packs = self._packs_of(allocation)
        if not len(packs):
            return []
        now_ns = int(self._facts.curve.time_ns[event])
        are_saved = self._facts.capture.tables["packs"]["time_ns"][packs] <= now_ns
        return _held(packs, are_saved, self._saved_tensors.released_ns[packs], now_ns)

    def describe(self, allocations: Sequence[int], event: int) -> list[Holder]:
        """Return one holder for each allocation, at an event of the live curve."""
        rows, op = np.array(allocations, dtype=np.int64), self._facts.op_at(event)
        untold = self._untold(rows, op)
        found = np.array([*self._of_roles(rows, op), None], dtype=object)[:-1]
        found[untold] = self._unseen.not_seen_each(rows[untold])
        return [
            self._one(allocation, event) if holder is None else holder
            for allocation, holder in zip(rows.tolist(), found.tolist(), strict=True)
        ]

    def _of_roles(self, allocations: IntArray, op: int) -> list[Holder | None]:
        """Return the holders of allocations with a role that no running op made. In a large model most have one."""
        facts, every = self._facts, self._facts.allocations
        roles = facts.categories.role.of(allocations)
        columns = (roles, every.storage[allocations].tolist(), facts.recorded_names.of(allocations))
        is_asked = (roles.isin(_NAMING_ROLES) & ((every.op[allocations] != op) | (op == NONE))).tolist()
        return [
            self._in_role(role, storage, name, op) if is_wanted else None
            for role, storage, name, is_wanted in zip(*columns, is_asked, strict=True)
        ]

    def _untold(self, allocations: IntArray, op: int) -> NDArray[np.bool_]:
        """Return which allocations have no evidence while an op runs: neither a maker nor a row in a table.

        Beside a small model that trains there may be 100,000 of them.
        """
        facts, every = self._facts, self._facts.allocations
        told: NDArray[np.bool_] = every.op[allocations] != NONE
        told |= facts.categories.role.isin(_NAMING_ROLES)[allocations]
        told |= every.origin[allocations] == WORKSPACE
        tables = (
            self._packs_by_storage, self._samples.storages, facts.autocast_copies, facts.recomputes.awaited,
            self._unseen.storages_given_to(op),
        )  # fmt: skip
        for storages in tables:
            told |= np.isin(every.storage[allocations], list(storages))
        return ~told

    def _one(self, allocation: int, event: int) -> Holder:
        running = self._unseen.running_op(allocation, event)
        if running is not None:
            return running
        known = self._in_books(allocation, event)
        if known is not None:
            return known
        op = self._facts.op_at(event)
        variables = self.variables(allocation, op)
        if variables:
            return self._of_variables(allocation, event, variables)
        checkpoint = self._checkpoint(allocation, op) or self._regions.holder(allocation, op, ())
        if checkpoint is not None:
            return checkpoint
        awaited = self._awaited.holder(allocation, op)
        reading = None if awaited is None else self._unseen.reading_op(allocation, event)
        return reading or awaited or self._unseen.holder(allocation, event)

    def _of_variables(self, allocation: int, event: int, variables: list[Holder]) -> Holder:
        """Return the holder to report, from holders that samples saw, or that were inferred without a sample."""
        of_region = self._regions.holder(allocation, self._facts.op_at(event), variables)
        if of_region is not None:
            return of_region
        if all(holder.is_guess for holder in variables):
            return self._unseen.reading_op(allocation, event) or variables[0]
        is_held = self._facts.categories.category[allocation] == "held"
        return min(variables, key=_lasts_less) if is_held else variables[0]

    def _in_books(self, allocation: int, event: int) -> Holder | None:
        """Return the holder that torch's own books name: a role, a saved tensor, a checkpoint, autocast's cache."""
        op = self._facts.op_at(event)
        is_in_role = self._facts.categories.role[allocation] in _NAMING_ROLES
        by_role = self._by_role(allocation, event) if is_in_role else None
        if by_role is not None:
            return by_role
        packs = self._packs_at_event(allocation, event)
        if packs:
            return self._graph_root(allocation, op, packs) or self._saved(allocation, op, packs[0])
        checkpoint = self._checkpoint(allocation, op)
        if checkpoint is not None and checkpoint.inference is None:
            return checkpoint
        copied = self._facts.autocast_copies.get(int(self._facts.allocations.storage[allocation]))
        if copied is None:
            return None
        text = words.AUTOCAST_COPY.format(name=copied)
        return Holder(HolderKind.AUTOCAST_CACHE, text, subject=(copied,), evidence=_BOOKS)

    def _checkpoint(self, allocation: int, op: int) -> Holder | None:
        """Return the checkpoint that keeps what it computed again until backward reads it, as torch's own frame says.

        The frame was read when the region had run: while it runs, its calls may hold the result as well.
        """
        facts = self._facts
        run = facts.recomputes.run_of(int(facts.allocations.op[allocation]))
        if not facts.recomputes.is_awaited(int(facts.allocations.storage[allocation]), op):
            return None
        op_name, line, module = (
            str(column[allocation])
            for column in (facts.made_by.op_name, facts.made_by.line, facts.made_by.module_name)
        )
        if run == NONE:
            text = words.told_by_op(words.TAKEN_BY_REGION, op_name)
            return Holder(HolderKind.CHECKPOINT, text, line, subject=(op_name,), evidence=_BOOKS)
        template = words.RECOMPUTED_IN if module else words.RECOMPUTED
        text = words.told_by_op(template, op_name, module)
        holder = Holder(HolderKind.CHECKPOINT, text, line, subject=(op_name, module), evidence=_BOOKS)
        return holder if facts.recomputes.is_over(run, op) else holder.inferred(Inference.LATER)

    def _by_role(self, allocation: int, event: int) -> Holder | None:
        """Return the holder that the role of an allocation names."""
        facts = self._facts
        storage, role = int(facts.allocations.storage[allocation]), facts.categories.role[allocation]
        return self._in_role(role, storage, facts.recorded_names[allocation], facts.op_at(event))

    def _in_role(self, role: str, storage: int, recorded_name: str, op: int) -> Holder | None:
        """Return the holder that a role names.

        It is inferred if the storage is not known to have the role at this op.

        Return None if the storage has left the role.
        """
        known, kind = self._facts.role_times.at(storage, role, op), ROLE_OF[role].holder
        if kind is None or known is InRole.ENDED:
            return None
        made_with = Inference.MADE_WITH if ROLE_OF[role].is_inferred else None
        rule = _INFERENCES.get(known, made_with)
        name = recorded_name.removeprefix(GRADIENT_PREFIX)
        # made at once, because 100,000 of them may be reported
        return Holder(
            kind,
            words.role_holder(role, name),
            subject=(name,),
            evidence=_BOOKS if rule is None else HolderEvidence.INFERRED,
            inference=rule,
        )

    @cached_property
    def _outcomes(self) -> SavedTensorOutcomes:
        return SavedTensorOutcomes(self._facts, self._saved_tensors)

    def _graph_root(self, allocation: int, op: int, packs: list[int]) -> Holder | None:
        """Return the program's variable whose graph keeps an allocation that no backward needs; None for others.

        While a backward is still to read it, nobody would let go of the variable.
        """
        if any(self._outcomes.at(pack, op) is SavedTensorOutcome.NEEDED for pack in packs):
            return None
        roots = self.graph_roots(allocation, op)
        root = next((root for root in roots if root.is_likely and not root.foreign), None)
        if root is None:
            return None
        saved = self._saved(allocation, op, packs[0])
        text = words.KEPT_BY_GRAPH.format(saved=saved.words, root=root.words)
        return dataclasses.replace(root, words=text, subject=(*saved.subject, *root.subject))

    def _saved(self, allocation: int, op: int, pack: int) -> Holder:
        saved = self._saved_tensors
        node, module, line = (str(column[pack]) for column in (saved.op_name, saved.module, saved.line))
        if saved.of_region[pack]:
            template = words.REGION_INPUT_OF if module else words.REGION_INPUT
            text, subject = template.format(module=module), (module, line)
            return Holder(HolderKind.CHECKPOINT, text, line, subject=subject, evidence=_BOOKS)
        template = words.SAVED_FOR_MODULE if module else words.SAVED
        roots = [root for root in self.graph_roots(allocation, op) if root.evidence is HolderEvidence.SEEN]
        return Holder(
            HolderKind.AUTOGRAD_NODE,
            words.told_by_op(template, node or words.SOME_OP, module),
            line,
            roots[0].path if roots else "",
            subject=(node, module),
            evidence=_BOOKS,
        )


def _held(packs: IntArray, are_saved: NDArray[np.bool_], ends: IntArray, now: int) -> list[int]:
    """Return the saved tensors of a list that have not been released: never, or later than now."""
    held: list[int] = packs[are_saved & ((ends == NONE) | (ends > now))].tolist()
    return held


def _lasts_less(holder: Holder) -> tuple[bool, ...]:
    """Return the sort key for holders of memory that outlives calls: seen ones first, and variables of calls last.

    Arguments that torch's calls pass on, as in `*args`, belong to another holder.
    """
    is_variable = holder.kind in (HolderKind.LOCAL, HolderKind.ARGUMENT, HolderKind.EVALUATION_STACK)
    return holder.foreign, holder.is_of_torch, not holder.is_likely, is_variable and not holder.is_inside
