"""Twice: autograd saves a tensor, and a converted copy of it as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.analysis.facts.autocast import CONVERSION
from memwatch.analysis.facts.uses import sources_of
from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import CONVERTED_COPY

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment

_CONVERSIONS: Final = (CONVERSION, "aten.clone", "aten.copy", "aten.contiguous")


def find_twice(peak: Moment) -> list[Candidate]:
    """Return the saved tensors that were made by converting another saved tensor."""
    if peak.op < 0:
        return []
    facts, made = peak.facts, peak.facts.made_by
    copies = _converted_copies(peak)
    largest = max(copies, key=lambda row: int(facts.allocations.nbytes[row]), default=NONE)
    line = str(made.line[largest]) if copies else ""
    subject, books = (FindingKind.TWICE,), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.AUTOGRAD_NODE, CONVERTED_COPY, line, subject=subject, evidence=books)
    return alive_then(FindingKind.TWICE, holder, copies, peak)


def _converted_copies(peak: Moment) -> list[int]:
    facts, categories = peak.facts, peak.facts.categories.category
    saved = set(peak.evidence.saved.storage.tolist()) - {NONE}
    is_conversion = facts.made_by.op_name.that(lambda name: name.startswith(_CONVERSIONS))
    copies = [row for row in saved if is_conversion[row]]
    source_of = sources_of(facts.capture, facts.allocations.op[copies])
    return [
        row
        for row in copies
        if (source := source_of.get(int(facts.allocations.op[row]), NONE)) in saved
        and categories[source] == "activation"
        and _is_chosen(facts, row)
    ]


def _is_chosen(facts: Facts, row: int) -> bool:
    """Return True for a copy that a program or autocast makes. torch's own functions always copy."""
    if facts.made_by.op_name[row].startswith(CONVERSION):
        return True
    stack = int(facts.capture.tables["ops"]["stack"][facts.allocations.op[row]])
    return all(call.calls_torch for call in facts.call_stacks.frames(stack)[:1])
