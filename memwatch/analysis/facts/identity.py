"""Identity: storages that turn out to be the same memory get one number.

The recorder numbers what it sees; it may number one block twice: a gradient that autograd wrapped anew while
backward ran, or a second storage made over the same memory (DLPack). The allocator's events settle it: two
storages first seen on one block are one, under the number that came first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.columns import Mapped
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_TABLES = ("uses", "deaths", "resizes", "packs", "roles", "role_ends", "holders", "recomputed")


def first_on_block(block_of: IntArray) -> IntArray:
    """Return, for each storage, the first storage that was seen on its block: itself, in most cases.

    Args:
        block_of: the block of each storage, -1 for none, shape (storages,).
    """
    canonical = np.arange(len(block_of), dtype=np.int32)
    matched = np.flatnonzero(block_of != NONE).astype(np.int32)
    block = block_of[matched]
    first = np.empty(int(block.max(initial=NONE)) + 1, dtype=np.int32)
    first[block[::-1]] = matched[::-1]  # the first storage on a block is written last and stays
    canonical[matched] = first[block]
    return canonical


def unify_storages(capture: Capture, canonical: IntArray) -> Capture:
    """Return the capture with every storage replaced by its canonical one in all tables but `births`."""
    if np.array_equal(canonical, np.arange(len(canonical))):
        return capture
    with_none = np.append(canonical, canonical.dtype.type(NONE))  # at -1, "there is none", is that
    tables = {name: Mapped(capture.tables[name], "storage", with_none.__getitem__) for name in _TABLES}
    return replace(capture, tables={**capture.tables, **tables})
