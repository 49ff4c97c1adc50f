"""The copies of parameters in autocast's cache, each with the parameter that it copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from memwatch.capture import Capture

CONVERSION: Final = "aten._to_copy"


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
    name_of_op = capture.tables["ops"]["name"]
    made = np.isin(births["storage"], copies) & (births["op"] != NONE) & (births["op"] < len(name_of_op))
    copy_of_op = {
        op: storage
        for op, storage in zip(births["op"][made].tolist(), births["storage"][made].tolist(), strict=True)
        if capture.strings[name_of_op[op]].startswith(CONVERSION)
    }
    reads = np.isin(uses["op"], list(copy_of_op)) & (uses["access"] == ACCESSES.index("read"))
    rows = zip(uses["op"][reads].tolist(), uses["storage"][reads].tolist(), strict=True)
    return {copy_of_op[op]: names[storage] for op, storage in rows if storage in names}
