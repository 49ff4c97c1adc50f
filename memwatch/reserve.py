"""Room that is kept for the words that are due when memory has run out."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import TYPE_CHECKING, Final

from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES: Final = 48 << 20
"""Three times what leaving a block takes, with its breakdown and its page."""


class Reserve:
    """Address space that is taken while there is some; no page of it is touched, so it takes no memory."""

    def __init__(self) -> None:
        self._space: mmap.mmap | None = None

    def take(self) -> None:
        """Take it, if there is so much."""
        with suppress(OSError, ValueError, MemoryError):
            if sys.platform == "win32":
                self._space = mmap.mmap(-1, _BYTES)
            else:
                self._space = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self) -> None:
        """Give it back, before what may need it."""
        if self._space is not None:
            self._space.close()
            self._space = None


@contextlib.contextmanager
def small_pools() -> Iterator[None]:
    """Have Arrow, in which pandas keeps texts, take no more than it needs.

    Its pool takes 1 GiB of address space at once; where that is not to be had, how the addresses happen to lie decides
    whether it fails.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        yield
        return
    before = arrow.default_memory_pool()
    arrow.set_memory_pool(arrow.system_memory_pool())
    try:
        yield
    finally:
        arrow.set_memory_pool(before)
