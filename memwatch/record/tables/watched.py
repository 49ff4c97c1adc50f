"""Weak references that watch storages: their callback notes the death, and they carry what is known of it.

The callback is the `append` of a deque and no function of Python's: a Ctrl-C of the user's would be raised in
such a function, and be lost. The rows are written when the next op starts or ends.
"""

from __future__ import annotations

import weakref
from typing import Any


class Watched(weakref.ref[Any]):
    """A weak reference to what dies with a storage.

    Attributes:
        number: the storage's number.
        key: the address of its C++ object, which names it while it lives.
        nbytes: what it counts in the live bytes of its device.
        device: string id of that device.
    """

    __slots__ = ("device", "key", "nbytes", "number")
    number: int
    device: int
    key: int
    nbytes: int


class WatchedStorage(Watched):
    """A weak reference to the Python object of a storage, which torch keeps for as long as the storage lives."""

    __slots__ = ()


class WatchedTensor(Watched):
    """A weak reference to the first tensor seen on a storage that has no Python object yet.

    Attributes:
        address: where the tensor's memory begins.
    """

    __slots__ = ("address",)
    address: int


def is_gone(known: Watched) -> bool:
    """Return True for a storage that died, though its death is not written yet: its address may be in use again."""
    return known.__class__ is WatchedStorage and known() is None
