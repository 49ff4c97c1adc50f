"""The holders of allocations that no sample saw: known from the running op, inferred by a rule, or not seen."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, WORKSPACE
from memwatch.analysis.facts.coded import different_rows
from memwatch.analysis.facts.compiled_calls import COMPILED, compiled_backward_at, compiled_call_at
from memwatch.analysis.facts.forward_ops import crosses_to_backward, maker_of_node, saved_by_autograd
from memwatch.analysis.holders.calls import common_call
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.samples import are_small, is_small
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.words import holders as words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.calls import StackCall
    from memwatch.analysis.holders.samples import HolderSamples
    from memwatch.capture.columns import IntArray

_OUTPUT = ACCESSES.index("output")
_LONGEST_PASS_OPS: Final = 32


class Unseen:
    """Explains memory without a role, a saved tensor or a sample."""

    def __init__(self, facts: Facts, samples: HolderSamples) -> None:
        self._facts, self._samples = facts, samples
        self._ops = facts.capture.tables["ops"]
        self._given: dict[int, set[int]] = {}
        self._not_seen: dict[tuple[object, ...], Holder] = {}

    def running_op(self, allocation: int, event: int) -> Holder | None:
        """Return the op that runs at an event as the holder of its own results, or None for other allocations."""
        facts = self._facts
        op = facts.op_at(event)
        is_made_now = int(facts.allocations.op[allocation]) == op != NONE
        if not is_made_now or int(facts.allocations.origin[allocation]) == WORKSPACE:
            return None
        if int(facts.curve.time_ns[event]) > int(self._ops["end_ns"][op]):
            return None  # it has returned
        op_name, line = str(facts.made_by.op_name[allocation]), str(facts.made_by.line[allocation])
        text, seen = words.told_by_op(words.RUNNING_OP, op_name), HolderEvidence.SEEN
        return Holder(HolderKind.RUNNING_OP, text, line, subject=(op_name,), evidence=seen)

    def reading_op(self, allocation: int, event: int) -> Holder | None:
        """Return the op that runs at an event as the holder of its arguments: torch holds them until it returns."""
        facts, op = self._facts, self._facts.op_at(event)
        if op == NONE or int(facts.curve.time_ns[event]) > int(self._ops["end_ns"][op]):
            return None
        if int(facts.allocations.storage[allocation]) not in self.storages_given_to(op):
            return None
        op_name = facts.op_name(op)
        text, seen = words.told_by_op(words.READING_OP, op_name), HolderEvidence.SEEN
        return Holder(HolderKind.RUNNING_OP, text, facts.op_line(op), subject=(op_name,), evidence=seen)

    def storages_given_to(self, op: int) -> set[int]:
        """Return the storages of an op's arguments."""
        if op not in self._given:
            uses = self._facts.capture.tables["uses"]
            given = (uses["op"] == op) & (uses["access"] != _OUTPUT)
            self._given[op] = set(uses["storage"][given].tolist())
        return self._given[op]

    def holder(self, allocation: int, event: int) -> Holder:
        """Return the holder of an allocation at an event, as far as it is known."""
        facts, allocations = self._facts, self._facts.allocations
        op, made = facts.op_at(event), int(allocations.op[allocation])
        op_name, line = str(facts.made_by.op_name[allocation]), str(facts.made_by.line[allocation])
        if int(allocations.origin[allocation]) == WORKSPACE:
            text, books = words.told_by_op(words.KERNEL, op_name), HolderEvidence.STRUCTURE
            return Holder(HolderKind.KERNEL, text, line, subject=(op_name,), evidence=books)
        reading = self.reading_op(allocation, event)
        known = self._inferred(allocation, event)
        if known is not None and reading is not None:  # the running op has it, so the reference was seen
            known = dataclasses.replace(known, evidence=HolderEvidence.SEEN, inference=None)
        known = known or reading
        known = (
            known or self._in_compiled_code(allocation, event) or self._in_no_variable(allocation, made, op)
        )
        return self.not_seen(allocation) if known is None else known

    def not_seen_each(self, allocations: IntArray) -> list[Holder]:
        """Return what `not_seen` does of each of many allocations, which are of few kinds."""
        facts, every = self._facts, self._facts.allocations
        columns = (
            are_small(facts, allocations), every.thread[allocations], every.op[allocations] != NONE,
            every.origin[allocations], facts.made_by.op_name.codes[allocations], facts.made_by.stack[allocations],
        )  # fmt: skip
        first, of_kind = different_rows([column.astype(np.int64) for column in columns])
        kinds = [self.not_seen(allocation) for allocation in allocations[first].tolist()]
        return [kinds[number] for number in of_kind.tolist()]

    def not_seen(self, allocation: int) -> Holder:
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
        if key not in self._not_seen:  # many allocations have one
            told = words.told_by_op(text, op_name, thread=thread)
            evidence = HolderEvidence.NONE
            self._not_seen[key] = Holder(kind, told, line, subject=(op_name, thread), evidence=evidence)
        return self._not_seen[key]

    def _inferred(self, allocation: int, event: int) -> Holder | None:
        """Return a holder from a rule about backwards, steps and calls into C++, or None if no rule applies."""
        made, op = int(self._facts.allocations.op[allocation]), self._facts.op_at(event)
        if NONE in (made, op) or made > op:
            return None
        phase, phase_now = self._facts.op_phase(made), self._facts.op_phase(op)
        op_name, line = (
            str(self._facts.made_by.op_name[allocation]),
            str(self._facts.made_by.line[allocation]),
        )
        module = str(self._facts.made_by.module_name[allocation])
        text, kind = "", HolderKind.CPP_ONLY
        rule: Inference | None = Inference.IN_FLIGHT
        is_of_step = phase == phase_now == OPTIMIZER
        if (is_of_step or phase in IN_BACKWARD) and self._is_dropped_in_this_step(allocation, made, op):
            text, rule, kind = words.VALUE_OF_STEP, Inference.WITHIN_STEP, HolderKind.OPTIMIZER_STEP
        elif (
            phase == BACKWARD
            and phase_now in IN_BACKWARD
            and self._is_read_in_this_backward(allocation, made, op)
        ):
            call = common_call(self._facts, allocation, op)
            if call is not None:  # of the program's own, which autograd's engine has called
                return _on_stack_of(call, Inference.SAME_CALL)
            text = words.GRADIENT_IN_FLIGHT_OF if module else words.GRADIENT_IN_FLIGHT
            rule = None if self._is_passed_by_engine(allocation, made, op) else rule
        elif self._is_in_one_node(made, op):
            text, rule = words.CPP_CALLED, Inference.WITHIN_NODE
        elif self._is_in_one_call(made, event):
            text, rule = words.CPP_CALLED, Inference.WITHIN_CPP
        if not text:
            return None
        told = words.told_by_op(text, op_name, module)
        evidence = HolderEvidence.STRUCTURE if rule is None else HolderEvidence.INFERRED
        subject = (rule or Inference.IN_FLIGHT, op_name, module)
        return Holder(kind, told, line, subject=subject, evidence=evidence, inference=rule)

    def _in_compiled_code(self, allocation: int, event: int) -> Holder | None:
        """Return compiled code as the holder of its own allocations, while that call or that backward runs."""
        facts = self._facts
        if str(facts.made_by.op_name[allocation]) != COMPILED:
            return None
        born_ns, now_ns = facts.allocations.birth_ns[allocation], facts.curve.time_ns[event]
        times_ns = np.array([born_ns, now_ns], dtype=np.int64)
        for running_at in (compiled_call_at, compiled_backward_at):
            at_birth, now = running_at(facts.capture, times_ns).tolist()
            if at_birth == now != NONE:
                line = str(facts.made_by.line[allocation])
                inferred, rule = HolderEvidence.INFERRED, Inference.WITHIN_COMPILED
                return Holder(
                    HolderKind.CPP_ONLY, words.COMPILED_RUNS, line, evidence=inferred, inference=rule
                )
        return None

    def _in_no_variable(self, allocation: int, made: int, op: int) -> Holder | None:
        """Return the evaluation stack of the call that made an allocation, if no variable was seen to hold it.

        Allocations of backward are left out: autograd may pass them on in a new tensor, which no sample recognises.
        """
        if NONE in (made, op) or made > op or self._facts.categories.category[allocation] == "held":
            return None  # an allocation that outlasts the call lies somewhere else
        if self._facts.op_phase(made) in IN_BACKWARD or self._facts.op_phase(op) in (
            *IN_BACKWARD,
            OPTIMIZER,
        ):
            return None
        call = common_call(self._facts, allocation, op)
        if call is None or not self._samples.was_in_no_variable(allocation, op):
            return None
        return _on_stack_of(call, Inference.NO_VARIABLE)

    def _is_read_in_this_backward(self, allocation: int, made: int, op: int) -> bool:
        """Return True if only backward ran since an allocation was made, until a later op that reads it."""
        last = int(self._facts.use_bounds.last_op[allocation])
        if last < op or last == made:
            return False
        return bool(np.isin(self._ops["phase"][made : last + 1], IN_BACKWARD).all())

    def _is_passed_by_engine(self, allocation: int, made: int, op: int) -> bool:
        """Return True if a C++ node made an allocation, a C++ node reads it later, and C++ runs at an op in between.

        A C++ node gets its arguments from autograd's engine, or from saved tensors, which have packs. So the engine
        has the allocation in between. Ops of hooks and of Python's own nodes have frames of their own in their call
        stacks. The nodes that add to `.grad` have no sequence number.
        """
        uses, stacks, sequence = self._facts.capture.tables["uses"], self._ops["stack"], self._ops["sequence"]
        is_read = (uses["storage"] == self._facts.allocations.storage[allocation]) & (uses["op"] >= op)
        readers = uses["op"][is_read & (uses["access"] != _OUTPUT)]
        readers = readers[(sequence[readers] != NONE) & (stacks[readers] == stacks[made])]
        is_node = sequence[made] != NONE and stacks[made] != NONE
        return bool(is_node and stacks[op] == stacks[made] and len(readers))

    def _is_in_one_node(self, made: int, op: int) -> bool:
        """Return True if one node of backward ran from the op that made an allocation to the running op."""
        sequence = self._ops["sequence"][made : op + 1]
        is_backward = self._ops["phase"][made : op + 1] == BACKWARD
        return bool(sequence[0] != NONE and (sequence == sequence[0]).all() and is_backward.all())

    def _is_dropped_in_this_step(self, allocation: int, made: int, op: int) -> bool:
        """Return True if an allocation is made and dropped within the step of an optimizer that runs.

        A hook may step within backward; of a backward within a step, as a closure runs, its own rules tell.
        """
        steps, death = self._facts.capture.tables["steps"], int(self._facts.allocations.death_ns[allocation])
        step = (steps["op"] <= made) & (op < steps["end_op"])
        if not step.any() or death == NONE:
            return False
        row = int(np.flatnonzero(step)[-1])
        if (
            self._facts.op_phase(made) in IN_BACKWARD
            and self._facts.op_phase(int(steps["op"][row])) not in IN_BACKWARD
        ):
            return False
        return death <= int(steps["time_ns"][row])

    def _is_in_one_call(self, made: int, event: int) -> bool:
        """Return True if Python stayed at one instruction from the op that made it to the running op: C++ ran.

        Between two ops, the next one shows whether Python went on. A module that was called, or left, shows that it
        did. A loop over one line would look like one call otherwise.
        """
        op = self._facts.op_at(event)
        has_returned = int(self._facts.curve.time_ns[event]) > int(self._ops["end_ns"][op])
        stacks = self._ops["stack"][made : op + 1 + has_returned]
        is_one = len(stacks) == op + 1 + has_returned - made and bool((stacks == stacks[0]).all())
        if stacks[0] == NONE or not is_one or self._modules_ran_between(made, op):
            return False
        return not (self._is_line_of_program(int(stacks[0])) and _repeats(self._ops["name"][made : op + 1]))

    def _is_line_of_program(self, stack: int) -> bool:
        """Return True where the innermost call of a stack is the program's or a package's: torch's own do not loop."""
        frames = self._facts.call_stacks.frames(stack)
        return bool(frames) and frames[0].calls_torch

    def _modules_ran_between(self, made: int, op: int) -> bool:
        """Return True if a call of a module began or ended between two ops."""
        first, last = np.searchsorted(self._bounds_of_calls, [made, op], side="right")
        return bool(last > first)

    @cached_property
    def _bounds_of_calls(self) -> IntArray:
        """The ops started before each call of a module, and before each return, in order."""
        calls = self._facts.capture.tables["calls"]
        return np.sort(np.concatenate([calls["start_op"], calls["end_op"]]))


def _repeats(names: IntArray) -> bool:
    """Return True for ops that repeat again and again, like those of a loop over one line.

    They are at least two passes and one op more. Fewer ops may as well be one call into C++ that does something
    twice.
    """
    return any(
        bool((names[period:] == names[:-period]).all())
        for period in range(1, min(_LONGEST_PASS_OPS, (len(names) - 1) // 2) + 1)
    )


def _on_stack_of(call: StackCall, rule: Inference) -> Holder:
    """Return the evaluation stack of a call as the holder of a value that no variable names."""
    value = Holder(HolderKind.EVALUATION_STACK, words.STACK_VALUE, evidence=HolderEvidence.INFERRED)
    return value.on_stack_of(call.function, call.site, is_own=call.is_own).inferred(rule)


# Infer that autograd holds forward tensors whose pack was not recorded.
#
# Hooks of the program, or a wrapper, may have taken the pack.
class Awaited:
    """Infers autograd's graph as the holder of a tensor that is in no variable until an op of backward reads it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def holder(self, allocation: int, op: int) -> Holder | None:
        """Return the node that an allocation waits for while an op runs, or None if no backward reads it.

        The graph may keep memory that the running backward has already read, as the graph of `torch.func.grad` does.
        """
        facts = self._facts
        storage = int(facts.allocations.storage[allocation])
        if facts.categories.category[allocation] != "activation" or storage == NONE:
            return None
        storages, ops = self._reads
        reads = ops[np.searchsorted(storages, storage) : np.searchsorted(storages, storage, side="right")]
        is_later = reads >= op
        if not is_later.any() and not (len(reads) and facts.op_phase(op) == BACKWARD):
            return None
        read = int(reads[is_later][0] if is_later.any() else reads[-1])
        maker = int(self._maker_of_node[read])
        node = words.SOME_OP if maker == NONE else facts.op_name(maker)
        module = str(facts.places.modules(facts.places.module_of_op[read : read + 1])[0])
        text = words.told_by_op(words.SAVED_FOR_MODULE if module else words.SAVED, node, module)
        return Holder(
            HolderKind.AUTOGRAD_NODE,
            text,
            str(facts.made_by.line[allocation]),
            subject=(node, module),
            evidence=HolderEvidence.INFERRED,
            inference=Inference.AWAITED,
        )

    @cached_property
    def _reads(self) -> tuple[IntArray, IntArray]:
        """The reads of backward without a pack: storages, and the ops that read them, both in order."""
        capture, named = self._facts.capture, self._facts.allocations.named
        uses, phase = capture.tables["uses"], capture.tables["ops"]["phase"]
        crossing: NDArray[np.bool_] = crosses_to_backward(capture, named)
        crossing &= ~saved_by_autograd(capture, named)
        rows = np.flatnonzero((uses["access"] == ACCESSES.index("read")) & crossing[uses["storage"]])
        rows = rows[phase[uses["op"][rows]] == BACKWARD]
        storages, ops = uses["storage"][rows], uses["op"][rows]
        order = np.lexsort((ops, storages))
        return storages[order], ops[order]

    @cached_property
    def _maker_of_node(self) -> IntArray:
        return maker_of_node(self._facts.capture)
