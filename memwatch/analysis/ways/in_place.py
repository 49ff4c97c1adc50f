"""Simulate activations that write their result over their input, as `nn.ReLU(inplace=True)` does.

Autograd allows that for an activation whose backward needs its result and not its input, if nothing else needs the
input. A recording then changes at one place: the input and the result are one piece of memory, which lives from the
birth of the input to the death of the later of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.ways.timeline import ChangedBytes, ChangedModules
from memwatch.capture.schema import ACCESSES, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import Timeline

_OP_OF_CLASS: Final = {
    "ReLU": "aten.relu.default",
    "LeakyReLU": "aten.leaky_relu.default",
    "ELU": "aten.elu.default",
}
"""Modules of torch with `inplace`, whose backward needs only the result, and the op that they call (torch 2.13)."""
_READ, _OUTPUT = ACCESSES.index("read"), ACCESSES.index("output")


def in_place(facts: Facts, saved: SavedTensors, timeline: Timeline) -> ChangedModules | None:
    """Return what changes if each activation that may do so writes over its input; None if none may.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.
    """
    tree, strings = facts.places.module_tree, facts.strings
    ops, uses, allocations = facts.capture.tables["ops"], facts.capture.tables["uses"], facts.allocations
    uses_by_op, uses_by_storage = Grouped(uses["op"]), Grouped(uses["storage"])
    packs_by_storage = Grouped(saved.storage)
    lasting = facts.categories.category.isin(["parameter", "buffer"])

    def pair_of(op: int) -> tuple[int, int] | None:
        """Return the input and the result of an activation, if the result may take the place of the input."""
        rows = uses_by_op.within(op, op + 1)
        read = uses["storage"][rows[uses["access"][rows] == _READ]].tolist()
        made = uses["storage"][rows[uses["access"][rows] == _OUTPUT]].tolist()
        if len(read) != 1 or len(made) != 1 or read == made:
            return None
        (given,), (result,) = read, made
        users = set(uses["op"][uses_by_storage.within(given, given + 1)].tolist())
        savers = set(saved.op[packs_by_storage.within(given, given + 1)].tolist())
        backward = {each for each in users if each > op and ops["sequence"][each] == ops["sequence"][op]}
        is_own = users - backward <= {op, int(allocations.op[given])} and savers <= {op}
        is_made = allocations.op[given] != NONE and not lasting[given]
        return (
            (given, result)
            if is_own and is_made and allocations.nbytes[given] == allocations.nbytes[result]
            else None
        )

    modules: list[int] = []
    pairs: list[tuple[int, int]] = []
    module_of_op = facts.places.module_of_op
    for module, class_name in enumerate(tree.classes):
        if class_name not in _OP_OF_CLASS:
            continue
        ops_of_module = np.flatnonzero(module_of_op == module).tolist()
        found = [pair_of(op) for op in ops_of_module if strings[ops["name"][op]] == _OP_OF_CLASS[class_name]]
        if found and all(found):
            modules.append(module)
            pairs += [pair for pair in found if pair is not None]
    if not modules:
        return None
    given, result = np.array(pairs).T
    end = len(facts.curve.live_bytes)
    deaths = [
        np.where(allocations.death_event[rows] == NONE, end, allocations.death_event[rows])
        for rows in (given, result)
    ]
    spared = timeline.bytes_of(np.concatenate([given, result]))
    kept = timeline.bytes_within(
        allocations.nbytes[given], allocations.birth_event[given], np.maximum(*deaths)
    )
    return ChangedModules(tuple(modules), ChangedBytes(spared - kept))
