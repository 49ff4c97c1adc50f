"""List the devices of a capture, and narrow a capture to one device.

Every figure is about one device. It is computed from a *narrowed* capture, which has the storages, saved tensors and
allocator events of that device alone. Ops keep their numbers. Storages and saved tensors get new numbers, because the
tables of analysis have one row for each number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE
from memwatch.device_names import META

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import Columns, IntArray


def devices_of(capture: Capture) -> list[str]:
    """Return the devices on which storages or allocator events were seen."""
    seen = np.concatenate([np.unique(capture.tables[name]["device"]) for name in ("births", "allocator")])
    return [name for name in capture.text(np.unique(seen)) if name != META]


def narrowed(capture: Capture, device: str) -> Capture:
    """Return the part of the capture that concerns one device.

    Tensors on the meta device stay, because notes name them.

    Args:
        capture: the recorded tables.
        device: the name of a device, such as `cpu` or `cuda:0`.
    """
    if set(devices_of(capture)) <= {device}:
        return capture
    births, packs = capture.tables["births"], capture.tables["packs"]
    here = np.array([name in (device, META) for name in capture.text(births["device"])], dtype=bool)
    storages = np.sort(births["storage"][here])
    of_device = np.isin(packs["storage"], storages) | (packs["storage"] == NONE)
    numbers = {"pack": np.sort(packs["pack"][of_device]), "storage": storages}
    tables = dict(capture.tables)
    events = tables["allocator"]
    here = np.array([name == device for name in capture.text(events["device"])], dtype=bool)
    tables["allocator"] = _rows(events, here)
    return replace(capture, tables={name: _narrowed(columns, numbers) for name, columns in tables.items()})


def _rows(columns: Columns, chosen: NDArray[np.bool_]) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _narrowed(columns: Columns, numbers: Mapping[str, IntArray]) -> Columns:
    """Return the rows of some storages and saved tensors, or of none (-1), with new numbers: their positions."""
    for name in numbers.keys() & columns.keys():
        known = numbers[name]
        rows = _rows(columns, (columns[name] == NONE) | np.isin(columns[name], known))
        columns = {**rows, name: np.where(rows[name] == NONE, NONE, np.searchsorted(known, rows[name]))}
    return columns
