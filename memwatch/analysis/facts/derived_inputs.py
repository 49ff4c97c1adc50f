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

_READ, _WRITE = map(ACCESSES.index, ("read", "write"))
_MOST_WRITERS: Final = 16
"""Ops that wrote into one storage which are followed: a buffer is filled by one line, as often as a loop runs."""
_OF_MODELS: Final = (ROLES.index("parameter"), ROLES.index("buffer"))


class DerivedInputs:
    """Follows storages back to what they were computed from."""

    def __init__(self, capture: Capture) -> None:
        births, uses, roles = (capture.tables[table] for table in ("births", "uses", "roles"))
        self._made_by: IntArray = np.full(int(births["storage"].max(initial=NONE)) + 1, NONE, dtype=np.int32)
        self._made_by[births["storage"]] = births["op"]
        self._module: IntArray = capture.tables["ops"]["module"]
        self._ops, self._storages, self._access = uses["op"], uses["storage"], uses["access"]
        if (self._ops[1:] < self._ops[:-1]).any():  # parallel ops are written as they end
            order = np.argsort(self._ops, kind="stable")
            self._ops, self._storages, self._access = (
                column[order] for column in (self._ops, self._storages, self._access)
            )
        written = np.flatnonzero(self._access == _WRITE)
        written = written[
            self._module[self._ops[written]] == NONE
        ]  # what a module writes into its argument is not all
        written = written[np.argsort(self._storages[written], kind="stable")]
        self._written, self._written_by = self._storages[written], self._ops[written]
        owned = roles["storage"][np.isin(roles["role"], _OF_MODELS)]
        self._is_derived: dict[int, bool] = dict.fromkeys(owned.tolist(), True)

    def __contains__(self, storage: int) -> bool:
        """Return True for a storage that a module's op made, or an op from what such an op made, or wrote there."""
        waiting, met = [storage], set()
        while waiting:
            one = waiting.pop()
            made = int(self._made_by[one]) if 0 <= one < len(self._made_by) else NONE
            if self._is_derived.get(one, made != NONE and int(self._module[made]) != NONE):
                self._is_derived[storage] = True
                return True
            if one not in met and one not in self._is_derived:
                for op in (*([made] if made != NONE else ()), *self._writers(one)):
                    first, last = np.searchsorted(self._ops, [op, op + 1])
                    read = self._access[first:last] == _READ
                    waiting += self._storages[first:last][read].tolist()
            met.add(one)
        self._is_derived.update(dict.fromkeys(met, False))
        return False

    def _writers(self, storage: int) -> list[int]:
        """Return the ops outside modules that wrote into a storage, the first few."""
        first, last = np.searchsorted(self._written, [storage, storage + 1])
        ops: list[int] = self._written_by[first : min(last, first + _MOST_WRITERS)].tolist()
        return ops
