"""Figures of this process's allocators: glibc's malloc and Python's own."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.monitor.mappings import ARENA_BYTES, PAGE_BYTES, union_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from memwatch.monitor.mappings import Mapping, Residency

_TOTAL: Final = re.compile(r'<total type="(\w+)" count="(\d+)" size="(\d+)"/>')
_SYSTEM: Final = re.compile(r'<system type="current" size="(\d+)"/>')
_HEAPS: Final = re.compile(r"<heap nr=")
_LARGE_BINS: Final = re.compile(r'<(?:size|unsorted) from="(\d+)" to="\d+" total="(\d+)" count="(\d+)"/>')
_ARENAS: Final = re.compile(r"^(\d+) arenas \* (\d+) bytes/arena", re.MULTILINE)
_IN_BLOCKS: Final = re.compile(r"^# bytes in allocated blocks\s*=\s*([\d,]+)", re.MULTILINE)


@dataclass(frozen=True)
class MallocFigures:
    """The memory that glibc's malloc took from the system, and its free part.

    Attributes:
        arenas: number of arenas.
        arena_bytes: bytes taken from the system for arenas.
        free_bytes: free chunks in arenas.
        trimmable_bytes: whole pages inside free chunks, about what `malloc_trim(0)` would return.
        mmapped_bytes: large blocks with a mapping of their own.
    """

    arenas: int
    arena_bytes: int
    free_bytes: int
    trimmable_bytes: int
    mmapped_bytes: int


@dataclass(frozen=True)
class PythonFigures:
    """The memory that Python's allocator of small objects took from the system, and the part that objects use."""

    arena_bytes: int
    used_bytes: int


def malloc_figures() -> MallocFigures | None:
    """Return malloc's figures; None for another malloc than glibc's."""
    text = _printed(lambda library, stream: library.malloc_info(0, stream))
    if not text or not _SYSTEM.search(text):
        return None
    totals = {kind: int(size) for kind, _, size in _TOTAL.findall(text)}  # the totals of all arenas come last
    trimmable = sum(
        max(int(total) - int(count) * PAGE_BYTES, 0)
        for begin, total, count in _LARGE_BINS.findall(text)
        if int(begin) > PAGE_BYTES
    )
    return MallocFigures(
        arenas=len(_HEAPS.findall(text)),
        arena_bytes=int(_SYSTEM.findall(text)[-1]),
        free_bytes=totals.get("fast", 0) + totals.get("rest", 0),
        trimmable_bytes=trimmable,
        mmapped_bytes=totals.get("mmap", 0),
    )


def python_figures() -> PythonFigures | None:
    """Return the figures of Python's allocator; None if Python uses another one."""
    try:
        print_figures = ctypes.pythonapi._PyObject_DebugMallocStats  # keeps the GIL
    except AttributeError as error:
        pass_on(error)
        return None
    text = _printed(lambda _, stream: print_figures(stream))
    arenas, used = (_ARENAS.search(text), _IN_BLOCKS.search(text)) if text else (None, None)
    if arenas is None or used is None:
        return None
    return PythonFigures(int(arenas[1]) * int(arenas[2]), int(used[1].replace(",", "")))


@functools.cache
def _libc() -> Any:
    """Return the C library if it can print into memory, else None."""
    try:
        library = ctypes.CDLL(None)
        library.open_memstream.restype = ctypes.c_void_p
        library.fclose.argtypes = [ctypes.c_void_p]
        library.free.argtypes = [ctypes.c_void_p]
        library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.process_vm_readv.restype = ctypes.c_ssize_t
    except (AttributeError, OSError, TypeError) as error:
        pass_on(error)
        return None
    return library


def _printed(write: Callable[[Any, ctypes.c_void_p], object]) -> str:
    """Return the text that a C function writes to a stream; "" without such a stream."""
    library = _libc()
    if library is None:
        return ""
    buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = library.open_memstream(ctypes.byref(buffer), ctypes.byref(size))
    if not stream:
        return ""
    try:
        write(library, ctypes.c_void_p(stream))
    finally:
        library.fclose(stream)
    try:
        return ctypes.string_at(buffer.value, size.value).decode("ascii", "replace") if buffer.value else ""
    finally:
        library.free(buffer)


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
    library = _libc()
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
