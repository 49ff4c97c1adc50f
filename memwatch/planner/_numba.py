"""Compile the kernels with numba, and keep the machine code on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(kernel: F) -> F:
    """Return a kernel that numba compiles at its first call; it runs without the GIL.

    Modules that use this decorator are imported inside functions, because importing numba takes a second.
    """
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(kernel))
    except RuntimeError:
        # Neither NUMBA_CACHE_DIR, nor the package's folder, nor the user's cache folder can be written:
        # numba raises "no locator available". Compiling in every process is slow, but planning works.
        return cast("F", numba.njit(nogil=True)(kernel))
