"""The tensors that torch's own calls hold around a checkpointed region: its inputs, results and received gradients.

The variables of these calls (`*args`, `t_outputs`) mean nothing to a reader. The region does; torch's own records
have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.analysis.holders.holder import Holder
from memwatch.capture.schema import BACKWARD, NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind, Inference
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts

CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
"""Where the calls are that run a region."""


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
        elif run != NONE and seen and facts.op_phase(made) == BACKWARD:
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
