"""Float32: autograd saves a float32 copy of a tensor in a lower precision, as autocast makes for losses and norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.autocast import CONVERSION
from memwatch.analysis.facts.uses import sources_of
from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind
from memwatch.own_code import CodeOwner
from memwatch.words.findings import FLOAT32_COPY

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment

_LOWER: Final = ("bfloat16[", "float16[")
_FUNCTIONAL: Final = ("torch/nn/functional.py", "torch\\nn\\functional.py")


def find_float32(peak: Moment) -> list[Candidate]:
    """Return the float32 copies that autograd keeps for an op that the program itself calls.

    Where a library calls the op, its user cannot change the precision. Where autograd saves the tensor itself too,
    the copy is another rule's.
    """
    facts, packs_at = peak.facts, peak.evidence.holders.packs_at
    saved = set(peak.evidence.saved.storage.tolist()) - {NONE}
    is_conversion = facts.made_by.op_name.that(lambda name: name.startswith(CONVERSION))
    converted = [row for row in saved if is_conversion[row]]
    source_of = sources_of(facts.capture, facts.allocations.op[converted])
    shape_of = _shapes(facts, {*converted, *source_of.values()})
    copies = [
        row
        for row in converted
        if shape_of.get(row, "").startswith("float32[")
        and (source := source_of.get(int(facts.allocations.op[row]), NONE)) not in saved
        and shape_of.get(source, "").startswith(_LOWER)
        and packs_at(row, peak.op)
        and _is_called_directly(facts, int(facts.made_by.stack[row]))
    ]
    largest = max(copies, key=lambda row: int(facts.allocations.nbytes[row]), default=NONE)
    line = str(facts.made_by.line[largest]) if copies else ""
    subject, books = (FindingKind.FLOAT32,), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.AUTOGRAD_NODE, FLOAT32_COPY, line, subject=subject, evidence=books)
    rows = facts.allocations.rows_of(copies).tolist()
    return alive_then(FindingKind.FLOAT32, holder, rows, peak)


def _shapes(facts: Facts, storages: set[int]) -> dict[int, str]:
    """Return dtype and shape of some storages."""
    births = facts.capture.tables["births"]
    rows = np.flatnonzero(np.isin(births["storage"], list(storages)))
    return dict(zip(births["storage"][rows].tolist(), facts.strings[births["shape"][rows]], strict=True))


def _is_called_directly(facts: Facts, stack: int) -> bool:
    """Return True if the program's own code called the op, at most through torch.nn.functional."""
    if stack == NONE:
        return False
    for call in facts.call_stacks.frames(stack):
        if facts.call_stacks.owner_of_file[call.file] == CodeOwner.PROGRAM:
            return True
        if not call.file.endswith(_FUNCTIONAL):
            return False
    return False
