"""Who held each piece of memory at an instant: by its role, by autograd's saved tensors, by the recorder's samples."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.analysis.facts.allocations import BASELINE, WORKSPACE
from memwatch.analysis.holders.calls import common_call
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.kinds import HolderKind
from memwatch.analysis.holders.samples import SMALL_RATIO, HolderSamples
from memwatch.capture.schema import GRADIENT_PREFIX, NONE, PHASES
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors

_ROLES: Final = {
    "parameter": (HolderKind.PARAMETER, words.PARAMETER),
    "buffer": (HolderKind.BUFFER, words.BUFFER),
    "optimizer state": (HolderKind.OPTIMIZER_STATE, words.OPTIMIZER_STATE),
    "gradient": (HolderKind.ATTRIBUTE, words.GRADIENT),
    "unsharded parameter": (HolderKind.UNSHARDED_PARAMETER, words.UNSHARDED_PARAMETER),
    "unsharded gradient": (HolderKind.COMMUNICATION, words.UNSHARDED_GRADIENT),
    "bucket": (HolderKind.COMMUNICATION, words.COMMUNICATION),
    "communication": (HolderKind.COMMUNICATION, words.COMMUNICATION),
}
"""Roles of memory that name their holder by themselves."""


class _Checkpoint(NamedTuple):
    """A checkpoint that keeps what it computed again: which run of its region that was."""

    run: int
    holder: Holder


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        self._facts, self._saved_tensors = facts, saved
        self._samples = HolderSamples(facts)

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran, the program's own and innermost first."""
        return self._samples.variables(allocation, op)

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation."""
        return self._samples.graph_roots(allocation, op)

    @cached_property
    def _packs(self) -> dict[int, list[tuple[int, int, int]]]:
        """Packs by storage: (pack, op before which it was saved, op before which it was released)."""
        saved = self._saved_tensors
        found: dict[int, list[tuple[int, int, int]]] = {}
        columns = zip(
            saved.storage.tolist(), saved.saved_op.tolist(), saved.released_op.tolist(), strict=True
        )
        for pack, (storage, start, end) in enumerate(columns):
            if storage != NONE:
                found.setdefault(storage, []).append((pack, start, end))
        return found

    def packs_at(self, allocation: int, op: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation while an op ran."""
        packs = self._packs.get(int(self._facts.allocations.storage[allocation]), [])
        return [pack for pack, start, end in packs if start <= op + 1 and (end == NONE or end > op)]

    def describe(self, allocations: Sequence[int], op: int) -> list[Holder]:
        """Return one holder for each allocation, as seen while an op ran."""
        return [self._one(allocation, op) for allocation in allocations]

    def _one(self, allocation: int, op: int) -> Holder:
        role = _ROLES.get(self._facts.categories.role[allocation])
        if role is not None:
            kind, template = role
            name = str(self._facts.names[allocation]).removeprefix(GRADIENT_PREFIX)
            return Holder(kind, template.format(name=name))
        packs = self.packs_at(allocation, op)
        if packs:
            return self._saved(allocation, op, packs[0])
        checkpoint = self._checkpoint(allocation)
        if checkpoint is not None and self._facts.recomputes.is_over(checkpoint.run, op):
            return checkpoint.holder
        copied = self._facts.autocast_copies.get(int(self._facts.allocations.storage[allocation]))
        if copied is not None:
            return Holder(HolderKind.AUTOCAST_CACHE, words.AUTOCAST_COPY.format(name=copied))
        variables = self.variables(allocation, op)
        if variables:
            return variables[0]
        return self._unnamed(allocation, op) if checkpoint is None else checkpoint.holder

    def _checkpoint(self, allocation: int) -> _Checkpoint | None:
        """Return the checkpoint that keeps what it computed again, as torch's own frame of the region says."""
        facts = self._facts
        run = facts.recomputes.run_of(int(facts.allocations.op[allocation]))
        if run == NONE or not facts.recomputes.is_kept(int(facts.allocations.storage[allocation])):
            return None
        op_name, line, module = (
            str(column[allocation])
            for column in (facts.made_by.op_name, facts.made_by.line, facts.made_by.module_name)
        )
        template = words.RECOMPUTED_IN if module else words.RECOMPUTED
        return _Checkpoint(
            run, Holder(HolderKind.CHECKPOINT, template.format(op=op_name, module=module), line)
        )

    def _saved(self, allocation: int, op: int, pack: int) -> Holder:
        saved = self._saved_tensors
        node, module, line = (str(column[pack]) for column in (saved.op_name, saved.module, saved.line))
        if saved.of_region[pack]:
            template = words.REGION_INPUT_OF if module else words.REGION_INPUT
            return Holder(HolderKind.CHECKPOINT, template.format(module=module), line)
        template = words.SAVED_FOR_MODULE if module else words.SAVED
        roots = self.graph_roots(allocation, op)
        return Holder(
            HolderKind.AUTOGRAD_NODE,
            template.format(op=node or words.SOME_OP, module=module),
            line,
            roots[0].path if roots else "",
        )

    def _unnamed(self, allocation: int, op: int) -> Holder:
        """Explain what no variable held: a kernel's workspace, a gradient in flight, an unnamed value of a call."""
        facts, allocations = self._facts, self._facts.allocations
        made = int(allocations.op[allocation])
        op_name, line = str(facts.made_by.op_name[allocation]), str(facts.made_by.line[allocation])
        if int(allocations.origin[allocation]) == WORKSPACE:
            return Holder(HolderKind.KERNEL, words.KERNEL.format(op=op_name), line)
        if made == op and op != NONE:
            return Holder(HolderKind.RUNNING_OP, words.RUNNING_OP.format(op=op_name), line)
        if int(allocations.nbytes[allocation]) <= SMALL_RATIO * facts.curve.peak_increase_bytes:
            return Holder(HolderKind.NOT_LOOKED_FOR, words.TOO_SMALL, line)
        if allocations.thread[allocation] != NONE:
            thread = facts.strings[allocations.thread[allocation]]
            return Holder(HolderKind.ELSEWHERE, words.MADE_BY_THREAD.format(thread=thread), line)
        if made == NONE:
            before = int(allocations.origin[allocation]) == BASELINE
            text = words.MADE_BEFORE if before else words.MADE_UNOBSERVED
            return Holder(HolderKind.ELSEWHERE, text, line)
        return self._in_flight(allocation, op, made, op_name, line)

    def _in_flight(self, allocation: int, op: int, made: int, op_name: str, line: str) -> Holder:
        """Explain what an op made and nothing that Python shows refers to."""
        phase = PHASES[self._facts.op_phase(made)]
        call = common_call(self._facts, allocation, op) if phase in ("forward", "recompute") else None
        if call is not None:
            text = words.UNNAMED_IN_CALL.format(function=call.function, op=op_name)
            return Holder(HolderKind.EVALUATION_STACK, text, call.site)
        module = str(self._facts.made_by.module_name[allocation])
        template = {
            "forward": words.UNNAMED_IN_FORWARD,
            "backward": words.UNNAMED_IN_BACKWARD_OF if module else words.UNNAMED_IN_BACKWARD,
            "optimizer": words.UNNAMED_IN_STEP,
            "recompute": words.UNNAMED_IN_RECOMPUTE,
        }[phase]
        return Holder(HolderKind.CPP_ONLY, template.format(op=op_name, module=module), line)
