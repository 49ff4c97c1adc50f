"""What became of saved tensors: some wait for a backward that never comes, some outlive the one that came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE, PHASES

if TYPE_CHECKING:
    from memwatch.analysis.frames import Frames


class Fates:
    """What became of saved tensors: read, never read by the backward that ran, or never reached by one."""

    def __init__(self, frames: Frames) -> None:
        tables, saved = frames.capture.tables, frames.saved
        ops, packs, unpacks = tables["ops"], tables["packs"], tables["unpacks"]
        self._last_read = np.full(len(packs["pack"]), NONE, dtype=np.int64)
        read = unpacks["released"] == 0
        np.maximum.at(self._last_read, unpacks["pack"][read], unpacks["op"][read])
        self._released = saved["released_op"].to_numpy()
        self._saved = saved["saved_op"].to_numpy()
        in_backward = ops["phase"] == PHASES.index("backward")
        self._ran = np.isin(packs["sequence"], ops["sequence"][in_backward & (ops["sequence"] != NONE)])
        self._ran |= np.isin(packs["sequence"], packs["sequence"][self._last_read != NONE])
        self._in_backward = np.append(in_backward, False)

    def fate(self, pack: int, op: int) -> str:
        """Give ``graph`` for a saved tensor that no backward reaches, ``retained`` after its last, else nothing."""
        last, released = int(self._last_read[pack]), int(self._released[pack])
        if last != NONE:
            return "retained" if last < op and not self._in_backward[op] else ""
        if self._ran[pack] or released == NONE:
            return ""
        if self._in_backward[released - 1] and not self._outlived_a_backward(pack, released):
            return ""
        return "graph"

    def _outlived_a_backward(self, pack: int, released: int) -> bool:
        """Tell of a saved tensor released after the last op of all whether a whole backward ran while it was kept."""
        ends = np.flatnonzero(self._in_backward[:-1] & ~self._in_backward[1:])
        return released == len(self._in_backward) - 1 and bool(
            ((ends >= self._saved[pack]) & (ends < released - 1)).any()
        )
