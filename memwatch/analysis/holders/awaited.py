"""Infer that autograd holds forward tensors whose pack was not recorded.

Hooks of the program, or a wrapper, may have taken the pack.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.forward_ops import crosses_to_backward, maker_of_node, saved_by_autograd
from memwatch.analysis.holders.holder import Holder
from memwatch.capture.schema import ACCESSES, BACKWARD, NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.words import holders as words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray


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
