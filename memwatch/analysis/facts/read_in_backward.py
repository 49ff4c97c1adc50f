"""What a backward reads of what forward made: saved by autograd, or passed on by the program's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import ACCESSES, FORWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture


def saved_by_autograd(capture: Capture, named: int) -> NDArray[np.bool_]:
    """Return which storages autograd saved for a backward."""
    saved = np.zeros(named, dtype=bool)
    storages = capture.tables["packs"]["storage"]
    saved[storages[storages != NONE]] = True
    return saved


def crosses_to_backward(capture: Capture, named: int) -> NDArray[np.bool_]:
    """Return which storages a forward op made and an op of a backward read, a recomputed one included."""
    crosses = np.zeros(named, dtype=bool)
    uses, births, phase = capture.tables["uses"], capture.tables["births"], capture.tables["ops"]["phase"]
    if not len(phase):
        return crosses
    made_forward = np.zeros(named, dtype=bool)
    by_op = births["op"] != NONE
    made_forward[births["storage"][by_op]] = phase[births["op"][by_op]] == FORWARD
    reads = (uses["access"] == ACCESSES.index("read")) & np.isin(phase[uses["op"]], IN_BACKWARD)
    read = uses["storage"][reads]
    crosses[read[made_forward[read]]] = True
    return crosses
