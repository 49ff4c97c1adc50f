"""How an allocator says that there is no memory left."""

from __future__ import annotations

import torch

_WORDS = "allocate memory"
"""What c10's allocator of the host says, in a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the error of an allocator that had no memory left, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _WORDS in str(error)
