"""Copies of parameters that autocast's cache held: which storage is a copy of which parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import ACCESSES, ROLES

if TYPE_CHECKING:
    from memwatch.capture import Capture


def autocast_copies(capture: Capture, names: dict[int, str]) -> dict[int, str]:
    """Return the name of the parameter by the storage of its copy.

    Args:
        capture: the recorded tables.
        names: the names of parameters by their storages.
    """
    roles, uses, births = (capture.tables[name] for name in ("roles", "uses", "births"))
    copies = np.unique(roles["storage"][roles["role"] == ROLES.index("autocast copy")])
    if not len(copies):
        return {}
    is_copy = np.isin(births["storage"], copies)
    copy_of_op = dict(zip(births["op"][is_copy].tolist(), births["storage"][is_copy].tolist(), strict=True))
    reads = np.isin(uses["op"], list(copy_of_op)) & (uses["access"] == ACCESSES.index("read"))
    rows = zip(uses["op"][reads].tolist(), uses["storage"][reads].tolist(), strict=True)
    return {copy_of_op[op]: names[storage] for op, storage in rows if storage in names}
