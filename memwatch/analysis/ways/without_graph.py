"""Simulate `torch.no_grad` for modules whose backward never runs: nothing that they save for it is kept.

That changes a recording at one place: tensors that autograd saved die after their last use in the module's call.
Tensors that an op outside reads later are left as they are, because a variable of the program may keep them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.ways.timeline import ChangedBytes, ChangedModules
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline
    from memwatch.capture.packed import Columns


def without_graph(facts: Facts, saved: SavedTensors, timeline: Timeline) -> ChangedModules | None:
    """Return the change if some outermost modules run without a graph; None if each of them needs its graph.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
    """
    calls = facts.capture.tables["calls"]
    outermost = np.flatnonzero((calls["depth"] == 0) & (calls["start_op"] < calls["end_op"]))
    ran = np.unique(maker_of_node(facts.capture))
    uses = facts.capture.tables["uses"]
    uses_by_storage, packs_by_op = Grouped(uses["storage"]), Grouped(saved.saved_op)
    allocations = facts.allocations
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    modules: list[int] = []
    rows: list[int] = []
    last_ops: list[int] = []
    for module in dict.fromkeys(calls["module"][outermost].tolist()):
        of_module: dict[int, int] = {}
        for call in outermost[calls["module"][outermost] == module].tolist():
            first_op, end_op = int(calls["start_op"][call]), int(calls["end_op"][call])
            packs = packs_by_op.within(first_op, end_op + 1)
            packs = packs[(saved.op[packs] >= first_op) & (saved.op[packs] < end_op)]
            has_run = bool(((ran >= first_op) & (ran < end_op)).any())
            is_pending = (saved.released_op[packs] == NONE) | (saved.used_op[packs] != NONE)
            if has_run or is_pending.any():
                of_module.clear()
                break
            for storage in np.unique(saved.storage[packs]).tolist():
                last_op = int(uses["op"][uses_by_storage.within(storage, storage + 1)].max(initial=NONE))
                if (
                    storage != NONE
                    and not lasting[storage]
                    and first_op <= allocations.op[storage]
                    and last_op < end_op
                ):
                    of_module[storage] = _returned(calls, int(allocations.op[storage]), last_op)
        if of_module:
            modules.append(module)
            rows += [*of_module]
            last_ops += [*of_module.values()]
    if not modules:
        return None
    start = timeline.events_of(np.array(last_ops))
    death = allocations.death_event[rows]
    is_gap = allocations.counted[rows] & ((death == NONE) | (death > start))
    nbytes = allocations.nbytes[rows][is_gap]
    return ChangedModules(
        tuple(modules), ChangedBytes(timeline.bytes_within(nbytes, start[is_gap], death[is_gap]))
    )


def _returned(calls: Columns, made: int, last_op: int) -> int:
    """Return how many ops had started when the last call returned that was given an allocation, or its last op.

    The caller keeps an argument in a variable until then.

    Args:
        calls: the table.
        made: the op that made the allocation.
        last_op: the last op that uses it.
    """
    was_given = (calls["start_op"] > made) & (calls["start_op"] <= last_op) & (calls["end_op"] > last_op)
    return int(calls["end_op"][was_given].max(initial=last_op + 1))
