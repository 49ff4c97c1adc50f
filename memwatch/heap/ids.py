"""The ids of many objects at once, as an array."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def ids_of(objects: Iterable[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each object."""
    return ids_in(tuple(objects))


def ids_in(items: tuple[object, ...]) -> NDArray[np.int64]:
    """Return the ``id`` of each item of a tuple, 0 for those that it does not hold yet.

    A tuple holds the addresses of its items in one piece, and an id is an address: copying them takes a tenth of
    the time of calling `id` for each. It is also the only safe way to read a tuple that gc showed: one that C code
    is still filling has gaps, and to iterate over a gap ends the process.
    """
    count = tuple.__len__(items)  # a subclass may say another
    if not count:
        return np.empty(0, dtype=np.int64)
    addresses = ctypes.string_at(id(items) + tuple.__basicsize__, count * ctypes.sizeof(ctypes.c_void_p))
    return np.frombuffer(addresses, dtype=np.int64)
