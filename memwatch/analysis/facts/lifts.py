"""Find the lines of storages that torch made below every op and handed to Python.

`torch.tensor(list)` passes its storage through an op that makes no bytes; the recorder notes it in `lifts`.
`torch.load`, a deep copy and a worker of a `DataLoader` give a storage to an empty tensor with the op `set_`, which
is the first to see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

OF_DATA: Final = "data"
"""The text in place of an op's name."""
_GIVES_STORAGE: Final = "aten.set_.source_Storage"
_WRITE: Final = ACCESSES.index("write")
_FOREVER: Final = np.iinfo(np.int64).max


class Lifts(NamedTuple):
    """Per storage, and once more for -1: whether it was made so, and stack and module of the call, else -1."""

    is_lift: NDArray[np.bool_]
    stack: IntArray
    module: IntArray


def lifts(capture: Capture, storages: int) -> Lifts:
    """Return which storages were made below every op, and where."""
    stack, module = (np.full(storages + 1, NONE, dtype=np.int64) for _ in range(2))
    found = Lifts(np.zeros(storages + 1, dtype=bool), stack, module)
    rows, ops = capture.tables["lifts"], capture.tables["ops"]
    noted = rows["storage"] < storages
    given, by_op = _given_by_set(capture)
    is_one = given < storages
    given, by_op = given[is_one], by_op[is_one]
    for storage, place in (
        (given, {name: ops[name][by_op] for name in ("stack", "module")}),
        (rows["storage"][noted], {name: rows[name][noted] for name in ("stack", "module")}),
    ):
        found.is_lift[storage] = True
        stack[storage], module[storage] = place["stack"], place["module"]
    return found


def gives_storage(capture: Capture) -> NDArray[np.bool_]:
    """Return which ops give a storage to a tensor: they write nothing into it."""
    names = [number for number, text in enumerate(capture.strings) if text.startswith(_GIVES_STORAGE)]
    found: NDArray[np.bool_] = np.isin(capture.tables["ops"]["name"], names)
    return found


def _given_by_set(capture: Capture) -> tuple[IntArray, IntArray]:
    """Return the storages that no op made and that were first seen as `set_` gave them to a tensor, and that op."""
    uses, births = capture.tables["uses"], capture.tables["births"]
    starts_ns = np.append(capture.tables["ops"]["start_ns"], _FOREVER)
    gives = gives_storage(capture)
    if not gives.any():
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    rows = np.flatnonzero((uses["access"] == _WRITE) & gives[uses["op"]])
    storage: Any = uses["storage"][rows]
    op: Any = uses["op"][rows]
    seen_ns = births["time_ns"][storage]
    first = (births["op"][storage] == NONE) & (starts_ns[op] <= seen_ns) & (seen_ns < starts_ns[op + 1])
    return storage[first], op[first]
