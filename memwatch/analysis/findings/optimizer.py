"""Optimizer: a step makes temporaries, for all parameters at once or for one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.findings.avoidable_memory import alive_then
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import NONE, PHASES
from memwatch.kinds.findings import FindingKind
from memwatch.words.findings import LOOP_STEP, OPTIMIZER_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.analysis.findings.moment import Moment


_WITH_FUSED_STEP: Final = tuple(f"torch/optim/{name}.py" for name in ("adam", "adamw", "sgd", "adagrad"))
"""The files of torch's optimizers that take `fused=True` (torch 2.13)."""


def find_optimizer(peak: Moment) -> list[Candidate]:
    """Return the temporaries of the optimizer's step, if the peak lies in it."""
    op = peak.op
    if op < 0 or PHASES[peak.facts.op_phase(op)] != "optimizer":
        return []
    line, books = peak.facts.op_line(op), HolderEvidence.STRUCTURE
    many = Holder(HolderKind.OPTIMIZER, OPTIMIZER_STEP, line, evidence=books)
    one = Holder(HolderKind.OPTIMIZER, LOOP_STEP, line, evidence=books)
    return [
        *alive_then(FindingKind.OPTIMIZER, many, foreach_temporaries(peak.facts), peak),
        *alive_then(FindingKind.FUSED, one, loop_temporaries(peak.facts), peak),
    ]


def foreach_temporaries(facts: Facts) -> list[int]:
    """Return the temporaries of each foreach op except its largest: one at a time is needed anyway.

    The rest is an estimate. A loop over parameters may make two temporaries for the largest parameter where a foreach
    op works in place, and its variable keeps one of the previous parameter.
    """
    allocations = facts.allocations
    by_op: dict[int, list[int]] = {}
    for row in np.flatnonzero(_temporary(facts) & _is_foreach(facts)).tolist():
        by_op.setdefault(int(allocations.op[row]), []).append(row)
    many = (sorted(group, key=lambda row: -int(allocations.nbytes[row]))[1:] for group in by_op.values())
    return [row for group in many for row in group]


def loop_temporaries(facts: Facts) -> list[int]:
    """Return the memory that a loop over parameters makes in the steps of an optimizer that has a fused step too."""
    rows = np.flatnonzero(_temporary(facts) & ~_is_foreach(facts))
    stacks, of_row = np.unique(facts.made_by.stack[rows], return_inverse=True)
    files = [
        frames[0].file.replace("\\", "/")
        if stack != NONE and (frames := facts.call_stacks.frames(stack))
        else ""
        for stack in stacks.tolist()
    ]
    has_fused_step = np.array([file.endswith(_WITH_FUSED_STEP) for file in files], dtype=bool)
    return rows[has_fused_step[of_row]].tolist() if len(rows) else []


def _temporary(facts: Facts) -> NDArray[np.bool_]:
    is_made_by_op: NDArray[np.bool_] = facts.allocations.op != NONE
    return facts.categories.category.isin(["temporary", "workspace"]) & is_made_by_op


def _is_foreach(facts: Facts) -> NDArray[np.bool_]:
    return facts.made_by.op_name.that(lambda name: "_foreach_" in name)
