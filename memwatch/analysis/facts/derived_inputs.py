"""Which arguments of models were computed by a model: these are no inputs of the program's.

A Lightning module that calls its layers itself gives each of them what the one before computed, and none of these
calls is inside another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE, ROLES

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_READ: Final = ACCESSES.index("read")
_OF_MODELS: Final = (ROLES.index("parameter"), ROLES.index("buffer"))


class DerivedInputs:
    """Follows storages back to what they were computed from."""

    def __init__(self, capture: Capture) -> None:
        births, uses, roles = (capture.tables[table] for table in ("births", "uses", "roles"))
        self._made_by = dict(zip(births["storage"].tolist(), births["op"].tolist(), strict=True))
        self._module: IntArray = capture.tables["ops"]["module"]
        reads = uses["access"] == _READ
        order = np.argsort(uses["op"][reads], kind="stable")
        self._ops, self._storages = uses["op"][reads][order], uses["storage"][reads][order]
        owned = roles["storage"][np.isin(roles["role"], _OF_MODELS)]
        self._is_derived: dict[int, bool] = dict.fromkeys(owned.tolist(), True)

    def __contains__(self, storage: int) -> bool:
        """Return True for a storage that a module's op made, or an op from what such an op made."""
        waiting, met = [storage], set()
        while waiting:
            one = waiting.pop()
            made = self._made_by.get(one, NONE)
            if self._is_derived.get(one, made != NONE and int(self._module[made]) != NONE):
                self._is_derived[storage] = True
                return True
            if one not in met and one not in self._is_derived and made != NONE:
                first, last = np.searchsorted(self._ops, [made, made + 1])
                waiting += self._storages[first:last].tolist()
            met.add(one)
        self._is_derived.update(dict.fromkeys(met, False))
        return False
