"""Find saved tensors that wait for a backward that never comes, and those that outlive their backward."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import BACKWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors

_FEWEST_CROSSED: Final = 2
"""Ends of iterations after which nobody comes back to a graph."""


class SavedTensorOutcome(Enum):
    """Whether a saved tensor is still needed."""

    NEEDED = "needed"
    """A backward reads it later, or lets go of it in its course."""
    NEVER_READ = "never read"
    """No backward ever reaches it, or none did in so many iterations that none will."""
    OUTLIVED = "outlived"
    """The last backward that reads it has run, and autograd still holds it."""


class SavedTensorOutcomes:
    """The outcome of every saved tensor, as seen while an op runs."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        tables = facts.capture.tables
        ops, packs, unpacks = tables["ops"], tables["packs"], tables["unpacks"]
        self._last_read = np.full(len(packs["pack"]), NONE, dtype=np.int64)
        read = unpacks["released"] == 0
        np.maximum.at(self._last_read, unpacks["pack"][read], unpacks["op"][read])
        self._saved = saved
        in_backward = np.isin(ops["phase"], IN_BACKWARD)
        of_nodes = (ops["phase"] == BACKWARD) & (ops["sequence"] != NONE)
        ran = np.isin(packs["sequence"], ops["sequence"][of_nodes])
        of_node = packs["sequence"] != NONE  # not the input of a checkpointed region
        self._node_ran = ran | np.isin(
            packs["sequence"], packs["sequence"][of_node & (self._last_read != NONE)]
        )
        self._in_backward = np.append(in_backward, False)  # no op runs after the last
        self._is_given_up = self._given_up(facts)

    def at(self, pack: int, op: int) -> SavedTensorOutcome:
        """Return what became of a saved tensor, as seen while an op runs.

        Args:
            pack: row of the saved tensors.
            op: number of the op.
        """
        last, released = int(self._last_read[pack]), int(self._saved.released_op[pack])
        if last != NONE:
            outlived = last < op and not self._in_backward[op]
            return SavedTensorOutcome.OUTLIVED if outlived else SavedTensorOutcome.NEEDED
        if self._is_given_up[pack]:
            return SavedTensorOutcome.NEVER_READ
        if self._node_ran[pack] or released == NONE:
            return SavedTensorOutcome.NEEDED
        if self._in_backward[released - 1] and not self._was_held_through_a_backward(pack, released):
            return SavedTensorOutcome.NEEDED
        return SavedTensorOutcome.NEVER_READ

    def _given_up(self, facts: Facts) -> NDArray[np.bool_]:
        """Return the tensors that were still saved at the end.

        No backward read them, though iterations had ended since.

        The backward of a graph may run after the block. A graph that is two iterations old gets no backward any more:
        a step has changed the weights, or other backwards have run instead. Younger graphs of the same calls are
        treated alike.
        """
        packs, stacks = facts.capture.tables["packs"], np.append(facts.capture.tables["ops"]["stack"], NONE)
        is_open = (self._saved.released_op == NONE) & (self._last_read == NONE) & ~self._node_ran
        if not is_open.any() or not facts.kept_across.are_told:
            return np.zeros(len(is_open), dtype=np.bool_)
        ends_ns = np.sort(facts.kept_across.ends_ns)
        crossed = len(ends_ns) - np.searchsorted(ends_ns, packs["time_ns"])
        stack = stacks[np.minimum(packs["op"], len(stacks) - 1) - 1]  # of the op that saved it
        is_old = is_open & (crossed >= _FEWEST_CROSSED)
        given_up: NDArray[np.bool_] = is_open & (crossed > 0) & np.isin(stack, stack[is_old])
        return given_up

    def _was_held_through_a_backward(self, pack: int, released: int) -> bool:
        """Return True for a saved tensor that was released after the last op of all, and held while a backward ran."""
        ends = np.flatnonzero(self._in_backward[:-1] & ~self._in_backward[1:])
        return released == len(self._in_backward) - 1 and bool(
            ((ends >= self._saved.saved_op[pack]) & (ends < released - 1)).any()
        )
