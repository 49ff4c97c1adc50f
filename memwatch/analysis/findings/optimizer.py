"""Optimizer: a foreach step makes temporaries for all parameters at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.findings.avoidable_memory import if_large
from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE, PHASES
from memwatch.words.findings import OPTIMIZER_STEP

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment

_LEAST_RATIO: Final = 0.2


def find_optimizer(peak: Moment) -> list[Candidate]:
    """Return the temporaries of foreach steps, if the peak lies in the optimizer."""
    op = peak.op
    if op < 0 or PHASES[peak.facts.op_phase(op)] != "optimizer":
        return []
    line, books = peak.facts.op_line(op), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.OPTIMIZER, OPTIMIZER_STEP, line, evidence=books)
    return if_large(FindingKind.OPTIMIZER, holder, _foreach_temporaries(peak.facts), peak, _LEAST_RATIO)


def _foreach_temporaries(facts: Facts) -> list[int]:
    """Return the temporaries of each foreach op but its largest: one at a time is needed anyway.

    What is left is an estimate. A loop over parameters may make two for the largest where a foreach op works in place,
    and its variable keeps one of the parameter before.
    """
    allocations, op_name = facts.allocations, facts.made_by.op_name
    temporary = facts.categories.category.isin(["temporary", "workspace"]) & (allocations.op != NONE)
    by_op: dict[int, list[int]] = {}
    for row in np.flatnonzero(temporary & op_name.that(lambda name: "_foreach_" in name)).tolist():
        by_op.setdefault(int(allocations.op[row]), []).append(row)
    many = (sorted(group, key=lambda row: -int(allocations.nbytes[row]))[1:] for group in by_op.values())
    return [row for group in many for row in group]
