"""Figures of this process's allocators of host memory: glibc's malloc and Python's own."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

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
    """Return the figures of Python's allocator; None if they are not available here."""
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
def c_library() -> Any:
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
    library = c_library()
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
