"""Workspace: one op needs much memory inside its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.allocations import WORKSPACE
from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind
from memwatch.words.holders import KERNEL

if TYPE_CHECKING:
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment

_LEAST_RATIO: Final = 0.5
"""The least share of the peak increase. A kernel of a plain U-Net has 26 % of it and a kernel of a plain LSTM 13 %.

For such a share, users would not cut the input of these ops in pieces.
"""


def find_workspace(peak: Moment) -> list[Candidate]:
    """Return the workspace of the op at the peak, each time that the same line runs it."""
    facts, op = peak.facts, peak.op
    if op < 0:
        return []
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    lines = facts.places.lines(slice(None))
    same = (ops["name"] == ops["name"][op]) & (lines == facts.op_line(op))[ops["stack"]]
    made = allocations.op != NONE
    found = np.flatnonzero((allocations.origin == WORKSPACE) & made & same[np.maximum(allocations.op, 0)])
    holder = Holder(
        HolderKind.KERNEL,
        KERNEL.format(op=facts.op_name(op)),
        facts.op_line(op),
        subject=(facts.op_name(op),),
        evidence=HolderEvidence.STRUCTURE,
    )
    least_bytes = _LEAST_RATIO * facts.curve.peak_increase_bytes
    candidates = alive_then(FindingKind.WORKSPACE, holder, found.tolist(), peak)
    return [candidate for candidate in candidates if candidate.nbytes >= least_bytes]
