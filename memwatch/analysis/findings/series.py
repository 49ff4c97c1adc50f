"""Series: a container gets more memory with each pass of a loop, as with each micro-batch or token of one call.

The program need not mark these passes. One line makes a result in each pass, and the container keeps all of them. The
memory of a KV cache grows too, but each pass reads all of it, so no rule reports it. Results that wait for the op
that joins them, and the activations of layers that run one after the other, are kept for a later use.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.schema import NONE
from memwatch.kinds.findings import FindingKind

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate
    from memwatch.capture.packed import IntArray

_FEWEST_PASSES: Final = 3
"""A step of four micro-batches keeps the results of three when its peak comes, in the last forward. A guess."""
_OF_VARIABLES: Final = (FindingKind.DRAG, FindingKind.ITERATION)
_OF_GRAPHS: Final = (FindingKind.GRAPH, FindingKind.RETAINED)


def as_growth(candidate: Candidate, facts: Facts) -> Candidate:
    """Return a candidate as growth, if a container keeps a result of each pass of a loop that no later pass reads.

    `del` at the end of a pass, the advice of the other kinds, would not end that.
    """
    if candidate.kind not in _OF_VARIABLES or not rate_bytes(candidate, facts):
        return candidate
    rows = np.array(candidate.allocations)
    made, last = facts.allocations.op[rows], facts.use_bounds.last_op[rows]
    for group in _by_stack(rows, facts):
        order = np.argsort(made[group], kind="stable")
        if (last[group][order][:-1] >= made[group][order][1:]).any():
            return candidate
    return dataclasses.replace(candidate, kind=FindingKind.GROWTH)


def rate_bytes(candidate: Candidate, facts: Facts) -> int:
    """Return the bytes that each pass of a loop adds to a container; 0 if the candidate is not a series."""
    if candidate.kind not in (*_OF_VARIABLES, *_OF_GRAPHS, FindingKind.VOID, FindingKind.GROWTH):
        return 0
    if not candidate.holder.edges or not HolderPath(candidate.holder.edges).ends_in_container:
        return 0
    rows = np.array(candidate.allocations)
    groups = _by_stack(rows, facts)
    passes = min((len(group) for group in groups), default=1)
    # layers of an `nn.Sequential` have one call stack: a pass adds a result of each
    return sum(
        int(np.median(facts.allocations.nbytes[rows[group]])) * round(len(group) / passes) for group in groups
    )


def _by_stack(rows: IntArray, facts: Facts) -> list[IntArray]:
    """Return the positions of results that one op of one line made in several passes and that are alive at one time.

    A container that each step fills anew is not a series: while a series goes on, none of the op's results dies.
    """
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    # the ops of one line have one call stack; their names tell them apart
    numbers = np.where(
        ops["stack"] == NONE, NONE, ops["stack"].astype(np.int64) * (int(ops["name"].max()) + 1) + ops["name"]
    )
    every = np.append(numbers, NONE)[np.minimum(allocations.op, len(numbers))]
    every[(allocations.op == NONE) | (allocations.storage == NONE)] = NONE  # the workspace of a kernel
    places_of = every[rows]
    found, counts = np.unique(places_of[places_of != NONE], return_counts=True)
    series = []
    for place in found[counts >= _FEWEST_PASSES].tolist():
        members = np.flatnonzero(places_of == place)
        last = int(allocations.birth_event[rows[members]].max())
        together = members[_ends(allocations, rows[members]) > last]
        if len(together) < _FEWEST_PASSES:
            continue
        first = int(allocations.birth_event[rows[together]].min())
        ends = _ends(allocations, np.flatnonzero(every == place))
        if not ((ends > first) & (ends <= last)).any():
            series.append(together)
    return series


def _ends(allocations: Allocations, rows: IntArray) -> IntArray:
    """Return the event after the life of each allocation, past all events where its end is not recorded."""
    deaths = allocations.death_event[rows]
    return np.where(deaths == NONE, np.iinfo(np.int64).max, deaths)
