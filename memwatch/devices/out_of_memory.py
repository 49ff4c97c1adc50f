"""How an allocator says that there is no memory left."""

from __future__ import annotations

import re
from typing import Final

import torch

NOTE_KIND: Final = "out of memory"
"""The kind of the notes that say what an allocator held when it had no memory left."""
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WORDS: Final = "allocate memory"
"""What c10's allocator of the host says, in a plain RuntimeError."""


_ASKED: Final = re.compile(r"[Tt]ried to allocate ([\d.]+) ?([KMGT]?i?B|bytes)")
"""What allocators say they were asked for: of the host, of CUDA, of other accelerators."""


def asked_bytes(error: BaseException) -> int | None:
    """Return what an allocator says that it was asked for, as it rounds it; None where it does not say."""
    found = _ASKED.search(str(error))
    if found is None:
        return None
    count, unit = found.groups()
    return int(float(count) * _UNITS.get(unit, 1))


def is_of_host(error: BaseException) -> bool:
    """Return True where the memory of the host ran out."""
    return not isinstance(error, torch.OutOfMemoryError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the error of an allocator that had no memory left, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _WORDS in str(error)
