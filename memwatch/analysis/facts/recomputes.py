"""Recomputations: which region of the forward an op computed again in backward, and until when that region ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, RECOMPUTE
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_SAVED_BY_POLICY: Final = ROLES.index("selective checkpoint")


class Recomputes:
    """The rows of the recorded table `recomputes`. Each recomputation of a region has a row."""

    def __init__(self, capture: Capture) -> None:
        runs, phase = capture.tables["recomputes"], capture.tables["ops"]["phase"]
        self.stack = runs["stack"]
        self._start_op, self._end_op = runs["start_op"], runs["end_op"]
        self.run_of_op: IntArray = np.full(len(phase), NONE, dtype=np.int32)
        """Per op: the innermost region that computed it again; -1 if none did, or if this is not known."""
        # the inner of two nested regions has ended first, so its row comes first: write it last, so that it stays
        for row in range(len(runs["start_op"]) - 1, -1, -1):
            self.run_of_op[int(runs["start_op"][row]) : int(runs["end_op"][row])] = row
        self.is_recompute: NDArray[np.bool_] = phase == RECOMPUTE
        self.run_of_op[~self.is_recompute] = NONE
        self.last_op = np.full(len(self.stack), NONE, dtype=np.int64)
        """Per run: its last op. The ops of a nested backward do not count."""
        again = np.flatnonzero(self.run_of_op != NONE)
        np.maximum.at(self.last_op, self.run_of_op[again], again)
        self._last_read = _last_reads(capture)
        self._is_reentrant = runs["sequence"] != NONE
        self.nodes: IntArray = np.unique(runs["sequence"][self._is_reentrant])
        """Sequence numbers of the nodes of reentrant regions."""

    def run_of(self, op: int) -> int:
        """Return the run that an op belongs to, -1 if none."""
        return int(self.run_of_op[op]) if 0 <= op < len(self.run_of_op) else NONE

    def ops_of(self, run: int) -> IntArray:
        """Return the ops that a run itself computed again, without those of a region or a backward inside it."""
        start, end = int(self._start_op[run]), int(self._end_op[run])
        return start + np.flatnonzero(self.run_of_op[start:end] == run)

    def reentrant_run_at(self, op: int) -> int:
        """Return the innermost reentrant region that runs again during an op, its own backward included; -1 if none."""
        rows = np.flatnonzero((self._start_op <= op) & (op < self._end_op) & self._is_reentrant)
        return int(rows[0]) if len(rows) else NONE

    def share_a_run(self, one_op: int, other_op: int) -> bool:
        """Return True if a run of some region lasted during both ops; the nested backward of one belongs to it."""
        lasts = [(self._start_op <= op) & (op < self._end_op) for op in (one_op, other_op)]
        return bool((lasts[0] & lasts[1]).any())

    def is_over(self, run: int, op: int) -> bool:
        """Return True if a run of a region had ended by the time of an op, so none of its calls still runs."""
        return op > int(self.last_op[run])

    @property
    def awaited(self) -> Collection[int]:
        """The storages that frames of regions keep."""
        return self._last_read.keys()

    def is_awaited(self, storage: int, op: int) -> bool:
        """Return True if torch's frame of the region keeps a storage for a read at an op or later."""
        return storage in self._last_read and op <= self._last_read[storage]


def _last_reads(capture: Capture) -> dict[int, int]:
    """Return, for each storage kept for a backward, the last op of the nodes that read it in that same backward.

    A node holds the tensors that it read until it has run. torch's frame drops each tensor when it is read.
    """
    tables = capture.tables
    births, uses, phase = tables["births"], tables["uses"], tables["ops"]["phase"]
    recomputed = tables["recomputed"]["storage"]
    if not len(recomputed):  # save the time: the code below visits all uses of a long run
        return {}
    kept = np.isin(births["storage"], recomputed) & (births["op"] != NONE)
    made = np.full(int(births["storage"].max(initial=NONE)) + 1, NONE, dtype=np.int64)
    made[births["storage"][kept]] = births["op"][kept]
    taken = tables["role_ends"]  # tensors that a selective checkpoint had saved in forward
    again = (taken["role"] == _SAVED_BY_POLICY) & np.isin(taken["storage"], recomputed)
    made[taken["storage"][again]] = np.minimum(taken["op"][again], len(phase) - 1)
    is_read = (uses["access"] != ACCESSES.index("output")) & (made[uses["storage"]] != NONE)
    storage, reader = uses["storage"][is_read], uses["op"][is_read]
    backward = np.cumsum(~np.isin(phase, IN_BACKWARD))
    within = backward[reader] == backward[made[storage]]
    last = np.full(len(made), NONE, dtype=np.int64)
    np.maximum.at(last, storage[within], reader[within])
    read = np.flatnonzero(last != NONE)
    ends = _ends_of_nodes(phase, tables["ops"]["sequence"])
    return dict(zip(read.tolist(), ends[last[read]].tolist(), strict=True))


def _ends_of_nodes(phase: IntArray, sequence: IntArray) -> IntArray:
    """Return, for each op, the last op that its node of backward runs right after it.

    Outside nodes, return the op itself.
    """
    ops = np.arange(len(phase))
    is_last = np.append((np.diff(sequence) != 0) | (np.diff(phase) != 0), True)[: len(ops)]
    lasts = ops[is_last | (sequence == NONE) | (phase != BACKWARD)]
    ends: IntArray = lasts[np.searchsorted(lasts, ops)]
    return ends
