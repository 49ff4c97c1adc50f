"""The live bytes at entry as the allocator of an accelerator counts them: in whole blocks, with all memory.

The recorder numbers the storages that Python shows. Their blocks are larger, and C++ may hold further memory, such as
the workspace of a library. If the allocator reported its allocated bytes at entry, the baseline equals that figure.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, Allocations
from memwatch.analysis.facts.devices import devices_of
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_WITHOUT_NUMBER: Final = (
    "storage", "address", "thread", "op", "death_ns", "birth_order", "death_order", "birth_event", "death_event",
)  # fmt: skip


def as_counted_at_entry(capture: Capture, allocations: Allocations) -> Allocations:
    """Return the allocations with live bytes at entry in whole blocks. Memory without a storage gets one row.

    Args:
        capture: the recorded tables.
        allocations: as joined, without events of the live curve.
    """
    counted_bytes = capture.meta.get("entry_allocated_bytes", {})
    start_ns = int(capture.meta.get("start_ns", 0))
    for name in set(devices_of(capture)) & counted_bytes.keys():
        device = capture.strings.index(name)
        here = allocations.counted & (allocations.origin == BASELINE) & (allocations.device == device)
        here &= allocations.birth_ns <= start_ns
        rounding = int(capture.meta.get("rounding_bytes", {}).get(name, 1))
        allocations = _counted(allocations, here, rounding, int(counted_bytes[name]))
        rest_bytes = int(counted_bytes[name]) - int(allocations.nbytes[here & allocations.counted].sum())
        if rest_bytes > 0:
            allocations = _with_rest(allocations, rest_bytes, device, start_ns)
    return allocations


def _counted(
    allocations: Allocations, here: NDArray[np.bool_], rounding: int, counted_bytes: int
) -> Allocations:
    """Return the allocations with blocks rounded up. Blocks beyond the allocator's count are left out.

    If only the free of a block without a storage was recorded, an unobserved thread may have made it after entry.
    """
    rounded: IntArray = -(-allocations.nbytes // rounding) * rounding
    nbytes = np.where(here, rounded, allocations.nbytes)
    if nbytes[here].sum() <= counted_bytes:
        return replace(allocations, nbytes=nbytes)
    by_storage = here & (allocations.storage != NONE)
    counted = allocations.counted & ~(here & ~by_storage)
    if nbytes[by_storage].sum() > counted_bytes:  # blocks of this device are not multiples of `rounding`
        nbytes = allocations.nbytes
    return replace(allocations, nbytes=nbytes, counted=counted)


def _with_rest(allocations: Allocations, nbytes: int, device: int, start_ns: int) -> Allocations:
    """Return the allocations and one more, which was there at entry and stays."""
    row = dict.fromkeys(_WITHOUT_NUMBER, NONE)
    row |= {"nbytes": nbytes, "device": device, "address": 0, "birth_ns": start_ns}
    row |= {"origin": BASELINE, "counted": True}
    columns: dict[str, Any] = {
        field.name: np.append(getattr(allocations, field.name), row[field.name])
        for field in fields(allocations)
        if field.name in row
    }
    return replace(allocations, **{**columns, "counted": columns["counted"].astype(bool)})
