"""Who held each piece of memory at an instant: by its role, by autograd's saved tensors, by the recorder's samples."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.analysis.facts.role_times import InRole
from memwatch.analysis.holders.evidence import HolderEvidence, Inference
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.kinds import HolderKind
from memwatch.analysis.holders.regions import Regions
from memwatch.analysis.holders.samples import HolderSamples
from memwatch.analysis.holders.unseen import Unseen
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors

_ROLES: Final = {
    "parameter": (HolderKind.PARAMETER, words.PARAMETER),
    "stepped parameter": (HolderKind.PARAMETER, words.STEPPED_PARAMETER),
    "buffer": (HolderKind.BUFFER, words.BUFFER),
    "optimizer state": (HolderKind.OPTIMIZER_STATE, words.OPTIMIZER_STATE),
    "gradient": (HolderKind.GRADIENT, words.GRADIENT),
    "unsharded parameter": (HolderKind.UNSHARDED_PARAMETER, words.UNSHARDED_PARAMETER),
    "unsharded gradient": (HolderKind.COMMUNICATION, words.UNSHARDED_GRADIENT),
    "bucket": (HolderKind.COMMUNICATION, words.COMMUNICATION),
    "communication": (HolderKind.COMMUNICATION, words.COMMUNICATION),
    "reducer memory": (HolderKind.COMMUNICATION, words.COMMUNICATION),
}
"""Roles that name their holder by themselves."""
_BOOKS: Final = HolderEvidence.STRUCTURE
_INFERRED_ROLES: Final = ("reducer memory",)
_INFERENCES: Final = {InRole.LATER: Inference.ROLE_LATER, InRole.EARLIER: Inference.ROLE_EARLIER}


class _Pack(NamedTuple):
    """A saved tensor: its number, and when autograd took hold of it and let it go, in ops started and in unix time."""

    number: int
    start_op: int
    end_op: int  # -1 if never
    start_ns: int
    end_ns: int


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        self._facts, self._saved_tensors = facts, saved
        self._samples = HolderSamples(facts)
        self._regions = Regions(facts)
        self._unseen = Unseen(facts, self._samples)

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran, the program's own and innermost first."""
        return self._samples.variables(allocation, op)

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation."""
        return self._samples.graph_roots(allocation, op)

    @cached_property
    def _packs(self) -> dict[int, list[_Pack]]:
        """The saved tensors that lie in each storage."""
        saved, packs = self._saved_tensors, self._facts.capture.tables["packs"]
        columns = (saved.storage, saved.saved_op, saved.released_op, packs["time_ns"], saved.released_ns)
        found: dict[int, list[_Pack]] = {}
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for number, (storage, *bounds) in enumerate(rows):
            if storage != NONE:
                found.setdefault(storage, []).append(_Pack(number, *bounds))
        return found

    def packs_at(self, allocation: int, op: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation by the end of an op."""
        packs = self._packs.get(int(self._facts.allocations.storage[allocation]), [])
        return [
            pack.number
            for pack in packs
            if pack.start_op <= op + 1 and (pack.end_op == NONE or pack.end_op > op)
        ]

    def _packs_at_event(self, allocation: int, event: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation at an event."""
        packs = self._packs.get(int(self._facts.allocations.storage[allocation]), [])
        now_ns = int(self._facts.curve.time_ns[event])
        return [
            pack.number
            for pack in packs
            if pack.start_ns <= now_ns and (pack.end_ns == NONE or pack.end_ns > now_ns)
        ]

    def describe(self, allocations: Sequence[int], event: int) -> list[Holder]:
        """Return one holder for each allocation, at an event of the live curve."""
        return [self._one(allocation, event) for allocation in allocations]

    def _one(self, allocation: int, event: int) -> Holder:
        running = self._unseen.running_op(allocation, event)
        if running is not None:
            return running
        known = self._in_books(allocation, event)
        if known is not None:
            return known
        op = int(self._facts.op_of_event[event])
        variables = self.variables(allocation, op)
        if variables:
            of_region = self._regions.holder(allocation, op, variables)
            if of_region is not None:
                return of_region
            is_held = self._facts.categories.category[allocation] == "held"
            return min(variables, key=_lasts_less) if is_held else variables[0]
        checkpoint = self._checkpoint(allocation, op) or self._regions.holder(allocation, op, ())
        return self._unseen.holder(allocation, event) if checkpoint is None else checkpoint

    def _in_books(self, allocation: int, event: int) -> Holder | None:
        """Return the holder that torch's own books name: a role, a saved tensor, a checkpoint, autocast's cache."""
        op = int(self._facts.op_of_event[event])
        role = self._facts.categories.role[allocation]
        by_role = self._by_role(allocation, role, event) if role in _ROLES else None
        if by_role is not None:
            return by_role
        packs = self._packs_at_event(allocation, event)
        if packs:
            return self._saved(allocation, op, packs[0])
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
        if run == NONE or not facts.recomputes.is_awaited(int(facts.allocations.storage[allocation]), op):
            return None
        op_name, line, module = (
            str(column[allocation])
            for column in (facts.made_by.op_name, facts.made_by.line, facts.made_by.module_name)
        )
        template = words.RECOMPUTED_IN if module else words.RECOMPUTED
        text = template.format(op=op_name, module=module)
        holder = Holder(HolderKind.CHECKPOINT, text, line, subject=(op_name, module), evidence=_BOOKS)
        return holder if facts.recomputes.is_over(run, op) else holder.inferred(Inference.LATER)

    def _by_role(self, allocation: int, role: str, event: int) -> Holder | None:
        """Return the holder that a role names; inferred, where the storage is not known to be in it just then.

        None where it is in that role no more.
        """
        kind, template = _ROLES[role]
        name = str(self._facts.names[allocation]).removeprefix(GRADIENT_PREFIX)
        holder = Holder(kind, template.format(name=name), subject=(name,), evidence=_BOOKS)
        storage, op = int(self._facts.allocations.storage[allocation]), int(self._facts.op_of_event[event])
        known = self._facts.role_times.at(storage, role, op)
        if known is InRole.ENDED:
            return None
        if known in _INFERENCES:
            return holder.inferred(_INFERENCES[known])
        return holder.inferred(Inference.MADE_WITH) if role in _INFERRED_ROLES else holder

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
            template.format(op=node or words.SOME_OP, module=module),
            line,
            roots[0].path if roots else "",
            subject=(node, module),
            evidence=_BOOKS,
        )


def _lasts_less(holder: Holder) -> tuple[bool, ...]:
    """Return what sorts the holders of memory that outlives calls: seen ones first, and variables of calls last.

    What torch's calls pass on, as in `*args`, is another's.
    """
    is_variable = holder.kind in (HolderKind.LOCAL, HolderKind.ARGUMENT, HolderKind.EVALUATION_STACK)
    is_unseen = holder.evidence is not HolderEvidence.SEEN
    return holder.foreign, holder.is_of_torch, is_unseen, is_variable and not holder.is_inside
