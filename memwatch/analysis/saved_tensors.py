"""Saved tensors: what autograd saved for backward, by which op, and when it let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE, PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.facts.places import Texts
    from memwatch.capture.packed import IntArray


@dataclass(frozen=True)
class SavedTensors:
    """One row per saved tensor, in the order in which they were packed."""

    storage: IntArray  # -1 if it could not be seen
    nbytes: IntArray
    tensor: Texts  # dtype and shape
    op: IntArray  # whose backward needs it, -1 if unknown
    op_name: Texts
    module: Texts
    line: Texts
    saved_op: IntArray  # ops started before it was saved
    used_op: IntArray  # the op before which backward first read it, -1 if never
    released_op: IntArray  # the op before which autograd let go of it, -1 if never

    def __len__(self) -> int:
        """Count the saved tensors."""
        return len(self.storage)

    def held_at(self, op: int) -> NDArray[np.bool_]:
        """Return which saved tensors were held while an op ran."""
        held: NDArray[np.bool_] = (self.saved_op <= op) & (
            (self.released_op == NONE) | (self.released_op > op)
        )
        return held


def find_saved_tensors(facts: Facts) -> SavedTensors:
    """Return what autograd saved in the block."""
    packs, unpacks, ops = (facts.capture.tables[name] for name in ("packs", "unpacks", "ops"))
    count = len(packs["pack"])
    used, released = np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int64)
    read = unpacks["released"] == 0
    used[unpacks["pack"][read][::-1]] = unpacks["op"][read][::-1]  # the first read is written last and stays
    released[unpacks["pack"][~read]] = unpacks["op"][~read]
    op = _op_of_node(ops, packs["sequence"])
    some = op != NONE
    op_name, stack = np.full(count, "", dtype=object), np.full(count, NONE, dtype=np.int64)
    op_name[some], stack[some] = facts.strings[ops["name"][op[some]]], ops["stack"][op[some]]
    return SavedTensors(
        storage=packs["storage"],
        nbytes=packs["nbytes"],
        tensor=facts.strings[packs["shape"]],
        op=op,
        op_name=op_name,
        module=facts.places.modules(packs["module"]),
        line=facts.places.lines(stack),
        saved_op=packs["op"],
        used_op=used,
        released_op=released,
    )


def _op_of_node(ops: dict[str, IntArray], sequence: IntArray) -> IntArray:
    """Return the forward op that ran while the node with each sequence number was the newest; -1 if none."""
    forward = np.flatnonzero((ops["phase"] != PHASES.index("backward")) & (ops["sequence"] != NONE))
    if not len(forward):
        return np.full(len(sequence), NONE, dtype=np.int64)
    numbers, first = np.unique(ops["sequence"][forward], return_index=True)
    position = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    return np.where(numbers[position] == sequence, forward[first[position]], NONE)
