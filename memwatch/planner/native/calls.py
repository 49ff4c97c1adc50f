"""Call the kernels, and pass them numbers and arrays.

A function beside each named tuple that the kernels read calls one of them. It needs the library, so only searches use
it: a search begins with `library.prepare`.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.planner.native.library import loaded

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REAL = struct.Struct("<d")
_WORD = struct.Struct("<q")


def words_of(value: Any) -> list[int]:
    """Return a value as C++ reads it: a number is one word, an array its address and size, a tuple its parts.

    The caller keeps the value alive while the words are in use.
    """
    if isinstance(value, tuple):
        return [word for part in value for word in words_of(part)]
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "kernels read arrays row after row"
        return [value.__array_interface__["data"][0], value.size]
    if isinstance(value, float):
        return [_WORD.unpack(_REAL.pack(value))[0]]
    return [int(value)]


def call(name: str, *args: Any, returns: type[Any] = ctypes.c_int64) -> Any:
    """Call a kernel. Numbers are passed as they are, tuples and arrays by a pointer to words.

    Raises:
        MemwatchError: the library is not there.
    """
    function = getattr(loaded(), name)
    function.restype = returns
    passed: list[Any] = []
    for value in args:
        if isinstance(value, (tuple, np.ndarray)):
            words = words_of(value)
            passed.append((ctypes.c_int64 * len(words))(*words))
        else:
            passed.append(ctypes.c_int64(int(value)))
    return function(*passed)


def random_state(seed: int) -> NDArray[np.uint64]:
    """Return the state of the kernels' random numbers that a seed gives."""
    return np.random.default_rng(seed).integers(1, 2**63, size=1, dtype=np.uint64)
