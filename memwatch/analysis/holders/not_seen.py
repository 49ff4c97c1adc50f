"""The holder of an allocation that no rule explains: a placeholder, which gives the op and the line that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE
from memwatch.analysis.facts.coded import different_rows
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.samples import are_small, is_small
from memwatch.capture.schema import NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind
from memwatch.words import holders as words

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray


class NotSeen:
    """Makes the placeholders of a capture."""

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
            told = words.told_by_op(text, op_name, thread=thread)
            evidence = HolderEvidence.NONE
            self._known[key] = Holder(kind, told, line, subject=(op_name, thread), evidence=evidence)
        return self._known[key]
