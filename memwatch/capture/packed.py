"""Arrays of integers: how rows become columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = NDArray[np.signedinteger[Any]]
"""Integers with a sign, mostly of 64 bits; narrower where there are many and none is large."""
Columns = Mapping[str, IntArray]
"""The columns of a table by name. Columns of a file have the narrowest integers that can hold their values."""


def as_rows(flat: Sequence[int] | IntArray, width: int) -> IntArray:
    """Return a flat list of integers, row after row, as an int64 array of shape (n, width)."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)
