"""Retained: autograd keeps saved tensors although the backward that needs them has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.findings.candidate import Candidate, by_holder
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import GRAPH_AFTER_BACKWARD

if TYPE_CHECKING:
    from memwatch.analysis.findings.moment import Moment


def find_retained(moment: Moment) -> list[Candidate]:
    """Return the memory that autograd holds after the last backward that reads it, by the variable of its graph."""
    held = moment.held_by_graphs(FindingKind.RETAINED, GRAPH_AFTER_BACKWARD, outlived=True)
    return by_holder(FindingKind.RETAINED, held, moment.facts.allocations)
