"""The ids of many objects at once, as an array."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def ids_of(objects: Iterable[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each object.

    A tuple holds the addresses of its items in one piece, and an id is an address: copying them takes a tenth of
    the time of calling `id` for each.
    """
    items = tuple(objects)
    if not items:
        return np.empty(0, dtype=np.int64)
    addresses = ctypes.string_at(id(items) + tuple.__basicsize__, len(items) * ctypes.sizeof(ctypes.c_void_p))
    return np.frombuffer(addresses, dtype=np.int64)
