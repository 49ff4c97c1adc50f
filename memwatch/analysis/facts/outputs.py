"""Find the allocations that a module returned, and the allocations that were saved for a backward.

Users know them by these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.forward_ops import op_of_node
from memwatch.capture.schema import ACCESSES, FORWARD, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.places import Places
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


class Purposes(NamedTuple):
    """Per allocation: the module whose output it is; the op that saved it for its backward, and the module it ran in.

    These are numbers of modules, and the string id of the op's name; -1 for none.
    """

    output_of: IntArray
    saved_by: IntArray
    saved_in: IntArray


def purposes(capture: Capture, allocations: Allocations, places: Places) -> Purposes:
    """Return the known path of each allocation: the module that made it, and the code that used it.

    If a module's forward made an allocation and code outside the module read it, the allocation is the module's
    output.
    """
    named = allocations.named
    output_of, saved_by, saved_in = (np.full(named + 1, NONE, dtype=np.int32) for _ in range(3))
    output_of[:named] = _outputs(capture, named, places.module_tree.parents)
    saved_by[:named], saved_in[:named] = _saved(capture, named)
    return Purposes(*(column[allocations.storage] for column in (output_of, saved_by, saved_in)))


def _outputs(capture: Capture, named: int, parents: list[int]) -> IntArray:
    births, uses, ops = (capture.tables[name] for name in ("births", "uses", "ops"))
    made_in = np.full(named, NONE, dtype=np.int32)
    if not len(ops["phase"]):
        return made_in
    made = births["op"] != NONE
    is_forward = ops["phase"] == FORWARD
    op = births["op"][made]
    made_in[births["storage"][made]] = np.where(is_forward[op], ops["module"][op], NONE)
    read = (uses["access"] == ACCESSES.index("read")) & is_forward[uses["op"]]
    storage, reader = uses["storage"][read], ops["module"][uses["op"][read]]
    maker = made_in[storage]
    outside = (maker != NONE) & (maker != reader)
    count = len(parents) + 1  # -1 is the code outside of all modules
    pairs = maker[outside].astype(np.int64) * count + (reader[outside] + 1)
    different, of_pair = np.unique(pairs, return_inverse=True)
    leaves = [not _is_inside(pair % count - 1, pair // count, parents) for pair in different.tolist()]
    has_left = np.zeros(named, dtype=bool)
    has_left[storage[outside][np.array(leaves, dtype=bool)[of_pair]]] = True
    return np.where(has_left, made_in, NONE).astype(np.int32)


def _is_inside(module: int, other: int, parents: list[int]) -> bool:
    while module not in (NONE, other):
        module = parents[module]
    return module == other


def _saved(capture: Capture, named: int) -> tuple[IntArray, IntArray]:
    """Return the name of the op whose node first saved each storage, and the module of the op."""
    packs, ops = capture.tables["packs"], capture.tables["ops"]
    by, inside = (np.full(named, NONE, dtype=np.int32) for _ in range(2))
    known = (packs["storage"] != NONE) & (packs["sequence"] != NONE)
    op = op_of_node(capture, packs["sequence"][known])
    name = np.append(ops["name"], NONE)[op]
    storage, first = np.unique(packs["storage"][known], return_index=True)
    by[storage], inside[storage] = name[first], packs["module"][known][first]
    return by, inside
