"""The ids of many objects at once, as an array."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.heap.tensors import mro_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_ADDRESS_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)


def ids_of(objects: Iterable[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each object."""
    return ids_in(tuple(objects))


def ids_in(items: tuple[object, ...] | list[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each item of a tuple or a list, 0 for those that it does not hold yet.

    Both hold the addresses of their items in one piece, and an id is an address: copying them takes a tenth of
    the time of calling `id` for each. It is also the only safe way to read one that gc showed: what C code is still
    filling has gaps, and to iterate over a gap ends the process.
    """
    is_tuple = tuple in mro_of(type(items))
    count = (tuple if is_tuple else list).__len__(items)  # type: ignore[arg-type]  # a subclass may say another
    if not count:
        return np.empty(0, dtype=np.int64)
    start = id(items) + tuple.__basicsize__
    if not is_tuple:  # the address of the piece and its room are a list's last two fields
        field = id(items) + list.__basicsize__ - 2 * _ADDRESS_BYTES
        start = ctypes.c_void_p.from_address(field).value or 0
    return np.frombuffer(ctypes.string_at(start, count * _ADDRESS_BYTES), dtype=np.int64)
