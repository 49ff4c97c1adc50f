"""Which ops communicate between processes, and what they work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import BACKWARD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture

_COLLECTIVES: Final = ("c10d.", "_c10d_functional.", "c10d_functional.")
"""How the names of the ops begin by which processes communicate."""


def collective_ops(capture: Capture) -> NDArray[np.bool_]:
    """Return, per op, whether processes communicate in it."""
    names = capture.tables["ops"]["name"]
    known, of_op = np.unique(names, return_inverse=True)
    is_collective = np.array([text.startswith(_COLLECTIVES) for text in capture.text(known)], dtype=bool)
    found: NDArray[np.bool_] = is_collective[of_op] if len(known) else np.zeros(0, dtype=bool)
    return found


def communicated_in_backward(
    capture: Capture, collective: NDArray[np.bool_], named: int
) -> NDArray[np.bool_]:
    """Return which storages a collective took while a backward ran, as buckets made before the block."""
    taken = np.zeros(named, dtype=bool)
    uses, phase = capture.tables["uses"], capture.tables["ops"]["phase"]
    if collective.any():
        taken[uses["storage"][(collective & (phase == BACKWARD))[uses["op"]]]] = True
    return taken
