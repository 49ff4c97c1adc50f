"""Reserve address space, so that the out-of-memory report can still be written."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import TYPE_CHECKING, Final

from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

BYTES_FOR_REPORT: Final = 48 << 20
"""Three times the bytes that memwatch took to end a block and to write its breakdown and its page."""


class Reserve:
    """Reserved address space. It takes no memory, because its pages stay untouched."""

    def __init__(self, nbytes: int = BYTES_FOR_REPORT) -> None:
        self._nbytes = nbytes
        self._space: mmap.mmap | None = None

    def take(self) -> bool:
        """Reserve the space, and return True. Return False if the process cannot reserve so much."""
        if self._space is not None:
            return True
        with suppress(OSError, ValueError, MemoryError):
            if sys.platform == "win32":
                self._space = mmap.mmap(-1, self._nbytes)
            else:
                self._space = mmap.mmap(-1, self._nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._space is not None

    def release(self) -> None:
        """Free the space, before work that may need it."""
        if self._space is not None:
            self._space.close()
            self._space = None


@contextlib.contextmanager
def small_pools() -> Iterator[None]:
    """Let Arrow, which keeps the texts of pandas, allocate only the memory that it needs.

    Arrow's own pool reserves 1 GiB of address space at once. If less is free, it fails or not depending on the layout
    of the addresses.
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
