"""One way to compile a kernel: cached on disk, without the GIL, typed for the type checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(kernel: F) -> F:
    """Compile a kernel with numba when it is first called; modules that use this are imported late."""
    return cast("F", numba.njit(cache=True, nogil=True)(kernel))
