"""malloc's blocks in the mappings of this process."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.host_allocators import PAGE_BYTES, c_library
from memwatch.monitor.mappings import ARENA_BYTES, union_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.monitor.mappings import Mapping, Residency


def is_heap_of_arena(address: int) -> bool:
    """Return True if the header of a heap of a malloc arena lies at an address of this process."""
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY)
        try:
            arena, _, size, usable = struct.unpack("=QQQQ", os.pread(descriptor, 32, address))
        finally:
            os.close(descriptor)
    except (OSError, struct.error) as error:
        pass_on(error)
        return False
    return (
        bool(arena)
        and 0 < size <= usable <= ARENA_BYTES
        and not size % PAGE_BYTES
        and not usable % PAGE_BYTES
    )


_MMAPPED: Final = 2
_FLAGS: Final = 7
_AT_ONCE: Final = 1024  # the most ranges for one call of process_vm_readv (IOV_MAX)
MOST_PAGES: Final = 1 << 20
"""Pages whose begin is read in a search for blocks of malloc: 4 GiB, about 0.4 s without the GIL."""


def mmapped_blocks(mappings: list[Mapping], residency: Residency) -> NDArray[np.int64] | None:
    """Return the ranges of malloc's blocks with a mapping of their own; None if there is too much to search.

    malloc writes the size of a block before it, with a flag, at the start of its first page. Neighbouring blocks
    share one mapping, so each page outside the blocks found so far may be the start of the next block. In tests the
    found blocks sum to malloc's own figure, to the byte.
    """
    library = c_library()
    if library is None or sum(mapping.rss for mapping in mappings) > MOST_PAGES * PAGE_BYTES:
        return None
    found: list[tuple[int, int]] = []
    for run in _adjacent(mappings):
        pages = np.concatenate([residency.resident_pages(mapping) for mapping in run])
        if not len(pages):
            continue
        heads = _first_words(library, pages)
        before, size = heads[:, 0], heads[:, 1] & ~np.uint64(_FLAGS)
        fits = (heads[:, 1] & np.uint64(_FLAGS)) == _MMAPPED
        fits &= (size >= PAGE_BYTES) & (size <= run[-1].end - run[0].start) & (before < PAGE_BYTES)
        fits &= (size + before) % np.uint64(PAGE_BYTES) == 0
        position = 0
        for at in np.flatnonzero(fits).tolist():
            begin = int(pages[at])
            end = begin + int(size[at])
            if begin >= position and end <= run[-1].end:
                found.append((begin, end))
                position = end
    return union_of(found)


def _adjacent(mappings: list[Mapping]) -> list[list[Mapping]]:
    """Group neighbours: advice to the kernel, as numpy gives it on large arrays, divides the mapping of a block."""
    runs: list[list[Mapping]] = []
    for mapping in mappings:
        if runs and runs[-1][-1].end == mapping.start:
            runs[-1].append(mapping)
        else:
            runs.append([mapping])
    return runs


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _first_words(library: Any, pages: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the first two words of pages of this process; zeros for a page that is gone."""
    words = np.zeros((len(pages), 2), dtype=np.uint64)
    here, pid = words.ctypes.data, os.getpid()
    for first in range(0, len(pages), _AT_ONCE):
        part = pages[first : first + _AT_ONCE]
        remote = np.empty((len(part), 2), dtype=np.int64)
        remote[:, 0], remote[:, 1] = part, 16
        local = _Piece(here + first * 16, len(part) * 16)
        library.process_vm_readv(
            pid, ctypes.byref(local), 1, ctypes.c_void_p(remote.ctypes.data), len(part), 0
        )
    return words
