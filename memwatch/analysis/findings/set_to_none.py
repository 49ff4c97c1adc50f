"""Set to none: gradients are filled with zeros where freeing them would do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import GRADIENTS

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


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
    subject, books = (FindingKind.SET_TO_NONE,), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.GRADIENT, GRADIENTS, line, subject=subject, evidence=books)
    rows = (row_of[storage] for storage in spans.storage.tolist())
    told = tuple(zip(rows, spans.start.tolist(), spans.end.tolist(), strict=True))
    nbytes = int(facts.allocations.nbytes[idle].sum())
    return [Candidate(FindingKind.SET_TO_NONE, holder, (), idle, nbytes, spans=told)]
