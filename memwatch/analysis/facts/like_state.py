"""What an optimizer makes within its step for its state, and drops again before a look sees it there, as LBFGS does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE, ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.iterations import KeptAcross
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_STATE: Final = ROLES.index("optimizer state")


def like_state(capture: Capture, allocations: Allocations, kept: KeptAcross) -> NDArray[np.bool_]:
    """Return what was made last, by calls of whose earlier results those that were kept were an optimizer's state."""
    roles, found = capture.tables["roles"], kept.like_others.copy()
    storages = roles["storage"][roles["role"] == _STATE]
    if not found.any() or not len(storages):
        return np.zeros(len(allocations), dtype=bool)
    stacks: IntArray = np.append(capture.tables["ops"]["stack"], NONE)[
        np.minimum(allocations.op, capture.rows("ops"))
    ]
    stacks[(allocations.op == NONE) | (allocations.storage == NONE)] = NONE
    is_state, size = np.isin(allocations.storage, storages), int(stacks.max(initial=0)) + 2
    others = kept.needed & ~found
    all_kept = np.bincount(stacks[others] + 1, minlength=size)
    of_state = np.bincount(stacks[others & is_state] + 1, minlength=size)
    mostly = 2 * of_state > all_kept
    mostly[0] = False  # whose calls are not known
    like: NDArray[np.bool_] = found & mostly[stacks + 1] & ~is_state
    return like
