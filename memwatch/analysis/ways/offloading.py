"""Simulate an accelerator on which some modules keep their saved tensors on the host.

`torch.autograd.graph.save_on_cpu` copies each saved tensor to the host, parameters included, and copies it back when
the backward reads it. That changes a recording of the accelerator at two places:

1. Tensors that only autograd kept, for nodes of these modules, die after their last use in the forward.
2. A backward node that reads saved tensors has a copy of each while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.ways.timeline import LAST, ChangedBytes
from memwatch.capture.schema import IN_BACKWARD, NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline


def offloaded(
    facts: Facts, saved: SavedTensors, timeline: Timeline, spans: Iterable[tuple[int, int]]
) -> ChangedBytes:
    """Return what changes if the tensors that some calls save wait on the host.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
        spans: the first op of each call, and the op after its last.
    """
    allocations, uses = facts.allocations, facts.capture.tables["uses"]
    of_calls = np.zeros(len(saved), dtype=bool)
    for start, end in spans:
        of_calls |= (saved.op >= start) & (saved.op < end)
    of_calls &= (saved.storage != NONE) & ~saved.of_region
    packs = np.flatnonzero(of_calls)
    read = packs[saved.used_op[packs] != NONE]
    used = saved.used_op[read]
    copies = timeline.bytes_within(
        saved.nbytes[read], timeline.events_of(used), timeline.events_after_nodes(used)
    )
    rows = np.unique(saved.storage[packs])
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    rows = rows[~lasting[rows] & allocations.counted[rows]]
    in_backward = np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD)
    uses_by_storage, packs_by_storage = Grouped(uses["storage"]), Grouped(saved.storage)
    last_ops = []
    for row in rows.tolist():
        used_by = uses["op"][uses_by_storage.within(row, row + 1)]
        last = used_by[~in_backward[used_by]].max(initial=max(int(allocations.op[row]), 0)) + 1
        others = packs_by_storage.within(row, row + 1)
        released = saved.released_op[others[~of_calls[others]]]
        last_ops.append(LAST if (released == NONE).any() else int(released.max(initial=last)))
    free = timeline.events_of(np.array(last_ops, dtype=np.int64))
    death = allocations.death_event[rows]
    waits = (death == NONE) | (death > free)
    gone = timeline.bytes_within(allocations.nbytes[rows][waits], free[waits], death[waits])
    return ChangedBytes(gone - copies)
