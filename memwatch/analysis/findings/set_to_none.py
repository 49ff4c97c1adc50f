"""Set to none: gradients are filled with zeros where freeing them would do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.findings.candidate import Candidate
from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import Holder, HolderKind
from memwatch.capture.schema import ACCESSES, PHASES
from memwatch.words.findings import GRADIENTS

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.moment import Moment
    from memwatch.capture.packed import IntArray

_ZEROING: Final = ("aten.zero_", "aten._foreach_zero_")
_OPTIMIZER: Final = PHASES.index("optimizer")


class _Span(NamedTuple):
    """A gradient's idle time: from the optimizer's end over the op that zeroes it to what adds to it."""

    allocation: int
    start: int
    end: int
    zero_op: int


def find_set_to_none(moment: Moment) -> list[Candidate]:
    """Return the gradients that hold zeros, or what zeros are about to replace, and are added to later on."""
    facts = moment.facts
    spans = [span for row in moment.alive_of("gradient") for span in _idle_spans(facts, row)]
    rows = sorted({span.allocation for span in spans if span.start <= moment.event < span.end})
    if not rows:
        return []
    known = set(rows)
    spans = [span for span in spans if span.allocation in known]
    line = facts.own_line(spans[0].zero_op)
    holder = Holder(HolderKind.GRADIENT, GRADIENTS, line, subject=(FindingKind.SET_TO_NONE,))
    nbytes = int(facts.allocations.nbytes[rows].sum())
    idle = tuple(span[:3] for span in spans)
    return [Candidate(FindingKind.SET_TO_NONE, holder, (), rows, nbytes, spans=idle)]


def _idle_spans(facts: Facts, row: int) -> list[_Span]:
    uses, ops = facts.capture.tables["uses"], facts.capture.tables["ops"]
    touched = (uses["storage"] == facts.allocations.storage[row]) & (
        uses["access"] != ACCESSES.index("output")
    )
    used = np.unique(uses["op"][touched])
    zeroed = [at for at, op in enumerate(used.tolist()) if facts.op_name(op).startswith(_ZEROING)]
    return [
        _Span(row, *_events(facts, ops, used, at), int(used[at])) for at in zeroed if 0 < at < len(used) - 1
    ]


def _events(facts: Facts, ops: dict[str, IntArray], used: IntArray, at: int) -> tuple[int, int]:
    """Return the events between which a gradient is idle: it is used by the ops before and after `used[at]`.

    The gradient that is added goes right after the op that adds it; without the old one it would stay.
    """
    between = ops["phase"][used[at - 1] + 1 : used[at] + 1]
    start_op = int(used[at - 1]) + 1 + int(np.argmax(between != _OPTIMIZER))
    end_op = min(int(used[at + 1]) + 1, len(ops["op"]) - 1)
    times_ns = facts.curve.time_ns
    start, end = np.searchsorted(times_ns, ops["start_ns"][[start_op, end_op]], side="left").tolist()
    return start, max(start, end)
