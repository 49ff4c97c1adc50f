"""Find holders for memory that torch's code, or a running call, keeps for a moment. Most of them are inferred.

`PassedOn` finds the backward node, the optimizer's step, the call into C++ or the compiled code that passes memory on.
`Awaited` finds the node of autograd's graph that keeps a tensor without a recorded pack, because the program's own
hooks, or a wrapper, packed it. `Regions` finds the checkpointed region whose inputs, results and received gradients
torch's own calls keep. The variables of these calls (`*args`, `t_outputs`) mean nothing to a reader, so the region is
named instead.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import (
    COMPILED,
    compiled_backward_at,
    compiled_call_at,
    crosses_to_backward,
    maker_of_node,
    saved_by_autograd,
)
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.running import CHECKPOINT_FILE, StackCall, common_call
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.samples import HolderSamples
    from memwatch.capture.columns import IntArray


_OUTPUT: Final = ACCESSES.index("output")
_LONGEST_PASS_OPS: Final = 32
"""The most ops in one pass of a loop whose body is one line. A guess."""


class PassedOn:
    """Infers which part of torch has an allocation that it made or passes on."""

    def __init__(self, facts: Facts, samples: HolderSamples) -> None:
        self._facts, self._samples = facts, samples
        self._ops = facts.capture.tables["ops"]

    @cached_property
    def _uses_by_storage(self) -> Grouped:
        return Grouped(self._facts.capture.tables["uses"]["storage"])

    def holder(self, allocation: int, event: int) -> Holder | None:
        """Return the holder of an allocation that torch passes on at an event, or None.

        The holder is a backward node, an optimizer's step, or a call into C++. If autograd's engine called a function
        of the program within the backward, it is the evaluation stack of that call.
        """
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
            if call is not None:
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

    def in_compiled_code(self, allocation: int, event: int) -> Holder | None:
        """Return compiled code as the holder while the compiled call or backward that made an allocation still runs."""
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

    def on_stack(self, allocation: int, op: int) -> Holder | None:
        """Return the evaluation stack of the call that made an allocation, if no variable was seen to hold it.

        Allocations of backward are left out: autograd may pass them on in a new tensor, which no sample recognises.
        """
        made = int(self._facts.allocations.op[allocation])
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
        """Return True if an allocation is still used at `op` or later, and only backward runs until its last use.

        Args:
            allocation: the piece of memory.
            made: the op that made it.
            op: the running op.
        """
        last = int(self._facts.use_bounds.last_op[allocation])
        if last < op or last == made:
            return False
        return bool(np.isin(self._ops["phase"][made : last + 1], IN_BACKWARD).all())

    def _is_passed_by_engine(self, allocation: int, made: int, op: int) -> bool:
        """Return True if only autograd's engine can hold an allocation while an op runs.

        A C++ node made it, and another C++ node reads it at the op or later. A C++ node gets its arguments either from
        the engine or from saved tensors, and saved tensors have packs. The op must run in C++ too: ops of hooks and of
        nodes in Python have other call stacks. Nodes that add to `.grad` have no sequence number, and do not count.
        """
        uses, stacks, sequence = self._facts.capture.tables["uses"], self._ops["stack"], self._ops["sequence"]
        storage = int(self._facts.allocations.storage[allocation])
        rows = self._uses_by_storage.within(storage, storage + 1)
        readers = uses["op"][rows[(uses["op"][rows] >= op) & (uses["access"][rows] != _OUTPUT)]]
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

        If a hook runs the step within a backward, tensors of this backward count too. If a closure runs a backward
        within the step, its tensors do not count: the rules for backward decide about these.
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
        """Return True if Python stayed in one call into C++ from the op that made an allocation to the event.

        All ops must have one call stack. At an event between two ops, the next op must have it too. A loop whose body
        is one line also has one call stack. memwatch finds such a loop by calls of modules, or by ops that repeat.
        """
        op = self._facts.op_at(event)
        has_returned = int(self._facts.curve.time_ns[event]) > int(self._ops["end_ns"][op])
        stacks = self._ops["stack"][made : op + 1 + has_returned]
        is_one = len(stacks) == op + 1 + has_returned - made and bool((stacks == stacks[0]).all())
        if stacks[0] == NONE or not is_one or self._modules_ran_between(made, op):
            return False
        return not (self._is_line_of_program(int(stacks[0])) and _repeats(self._ops["name"][made : op + 1]))

    def _is_line_of_program(self, stack: int) -> bool:
        """Return True if the innermost call of a stack is not torch's: torch's own code has no such loop."""
        frames = self._facts.call_stacks.frames(stack)
        return bool(frames) and frames[0].calls_torch

    def _modules_ran_between(self, made: int, op: int) -> bool:
        """Return True if a call of a module began or ended between two ops."""
        first, last = np.searchsorted(self._bounds_of_calls, [made, op], side="right")
        return bool(last > first)

    @cached_property
    def _bounds_of_calls(self) -> IntArray:
        """The ops at which the calls of modules begin and end, in order."""
        calls = self._facts.capture.tables["calls"]
        return np.sort(np.concatenate([calls["start_op"], calls["end_op"]]))


def _repeats(names: IntArray) -> bool:
    """Return True if ops repeat like those of a loop whose body is one line.

    There must be at least two passes and one more op. Fewer ops may come from one call into C++ that does something
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


class Awaited:
    """Infers autograd's graph as the holder of a tensor that is in no variable until an op of backward reads it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def holder(self, allocation: int, op: int) -> Holder | None:
        """Return the node whose backward reads an allocation next, at `op` or later, or None.

        While a backward runs, a read before `op` counts too: the graph may keep memory that the running backward has
        already read, as the graph of `torch.func.grad` does.
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


class Regions:
    """Explains what the calls of torch around a checkpointed region hold."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def holder(self, allocation: int, op: int, seen: Sequence[Holder]) -> Holder | None:
        """Return the region for which torch's calls hold an allocation while an op runs, or None.

        Args:
            allocation: the piece of memory.
            op: the op.
            seen: the holders that a sample saw; empty without a sample.
        """
        if seen and not all(holder.is_of_torch for holder in seen):
            return None
        facts = self._facts
        run, made = facts.recomputes.reentrant_run_at(op), int(facts.allocations.op[allocation])
        template = ""
        if run != NONE and facts.recomputes.run_of(made) == run:
            template = words.REGION_RESULT if facts.recomputes.is_over(run, op) else ""
        elif run != NONE and seen and made != NONE and facts.op_phase(made) == BACKWARD:
            template = words.REGION_GRADIENT
        elif any(CHECKPOINT_FILE in holder.site for holder in seen):
            template = words.REGION_GIVEN
        if not template:
            return None
        line = str(facts.made_by.line[allocation])
        found = Holder(
            HolderKind.CHECKPOINT, template, line, subject=(template, line), evidence=HolderEvidence.STRUCTURE
        )
        if not seen:
            return found.inferred(Inference.WITHIN_REGION)
        rule = seen[0].inference
        return found if rule is None else found.inferred(rule)
