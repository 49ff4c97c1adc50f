"""Ask the allocators how many bytes are in use, in about a microsecond; a hint, never a verdict."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905


class _MallInfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@cache
def _mallinfo() -> Callable[[], _MallInfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2  # glibc 2.33 and later
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _MallInfo2
    return function


def memory_in_use_bytes() -> int:
    """Return the bytes that malloc and the CUDA allocator have handed out; 0 where nobody counts."""
    function = _mallinfo()
    total = 0
    if function is not None:
        info = function()
        total = info.uordblks + info.hblkhd
    if torch.cuda.is_initialized():
        total += sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    return total
