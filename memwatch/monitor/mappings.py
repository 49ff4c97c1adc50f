"""The mappings of a process as the kernel lists them: their uses, pages in memory, and malloc's blocks in them."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import re
import resource
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.errors import MemwatchError
from memwatch.host_allocators import PAGE_BYTES, c_library
from memwatch.signal_handlers import pass_on
from memwatch.words.processes import not_readable_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

ARENA_BYTES: Final = 64 << 20
"""glibc aligns each heap of an arena to this size on 64-bit machines (HEAP_MAX_SIZE)."""
_MOST_GUARD_BYTES: Final = 64 << 10
"""glibc puts one page without access below each stack of a thread; pages have up to 64 KiB. Larger reserved ranges
belong to others."""
_DEFAULT_STACK_BYTES: Final = 8 << 20
_HEADER: Final = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<permissions>\S{4}) \S+ \S+ \d+ *(?P<path>.*)$"
)
_FIELDS: Final = {"Rss": "rss", "Pss": "pss", "Private_Clean": "private", "Private_Dirty": "private"}
_SHARED_MEMORY: Final = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "[anon_shmem")  # noqa: S108
_LIBRARY: Final = re.compile(r"\.so(\.[\w.]+)?$")


class ProcessError(MemwatchError):
    """The memory of a process cannot be read, because the process or /proc is missing, or another user owns it."""


class Use(enum.Enum):
    """The use of a mapping."""

    CODE = "code and libraries"
    FILE = "file mappings"
    SHARED = "shared memory"
    STACK = "thread stacks"
    ARENA = "malloc arenas"
    ANONYMOUS = "anonymous"
    DEVICE = "device files"


@dataclass(slots=True)
class Mapping:
    """One mapping of a process; `rss` and the other figures are bytes in memory."""

    start: int
    end: int
    permissions: str
    path: str
    rss: int = 0
    pss: int = 0
    private: int = 0
    use: Use = Use.ANONYMOUS
    use_end: int = 0
    """The address where this use ends, if it can end before the mapping."""

    @property
    def is_plain(self) -> bool:
        """Whether this is private memory without a file that can be written: malloc, mmap, a stack."""
        return self.permissions.startswith("rw") and self.permissions[3] == "p" and not self.path


def read_mappings(pid: int, *, is_heap_of_arena: Callable[[int], bool] | None = None) -> list[Mapping]:
    """Return the mappings of a process by address, each with its use.

    Args:
        pid: the process.
        is_heap_of_arena: returns whether malloc's header lies at an address; without it the shape decides.

    Raises:
        ProcessError: the mappings cannot be read.
    """
    if not os.path.exists("/proc/self/smaps"):
        raise ProcessError(
            "this system has no /proc/PID/smaps, so the memory of a process cannot be split into rows; "
            "memwatch reads it on Linux"
        )
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessError(f"there is no process {pid}; `ps` lists the running processes") from None
    except PermissionError:
        raise ProcessError(not_readable_text(pid, is_root=os.geteuid() == 0)) from None
    mappings = _parse(text)
    if not mappings:
        raise ProcessError(f"process {pid} has no memory: it has ended, or it is a thread of the kernel")
    _classify(mappings, is_heap_of_arena, _stack_bytes(pid))
    return mappings


def _parse(text: str) -> list[Mapping]:
    mappings: list[Mapping] = []
    for line in text.splitlines():
        if line[:1].isupper():  # a field of the mapping above; addresses have lower case
            name, _, rest = line.partition(":")
            if mappings and (field := _FIELDS.get(name)) is not None:
                mapping = mappings[-1]
                setattr(mapping, field, getattr(mapping, field) + int(rest.split()[0]) * 1024)
        elif (match := _HEADER.match(line)) is not None:
            mappings.append(
                Mapping(int(match["start"], 16), int(match["end"], 16), match["permissions"], match["path"])
            )
    return [mapping for mapping in mappings if mapping.path != "[vsyscall]"]  # the kernel's, and no memory


def _classify(
    mappings: list[Mapping], is_heap_of_arena: Callable[[int], bool] | None, stack_bytes: int
) -> None:
    executable = {mapping.path for mapping in mappings if "x" in mapping.permissions}
    for mapping in mappings:
        mapping.use = _use_by_path(mapping, executable)
    starts: dict[str, int] = {}  # of files: where their first page is
    reserved_until = 0  # the end of the last arena's reserved addresses
    for position, mapping in enumerate(mappings):
        before = mappings[position - 1] if position else None
        after = mappings[position + 1] if position + 1 < len(mappings) else None
        if mapping.use is Use.CODE and (before is None or before.path != mapping.path):
            starts[mapping.path] = mapping.start
        if not mapping.is_plain or mapping.use is not Use.ANONYMOUS:
            continue
        if _has_shape_of_arena(mapping, after) and (
            is_heap_of_arena is None or is_heap_of_arena(mapping.start)
        ):
            mapping.use = Use.ARENA
            reserved_until = mapping.start + ARENA_BYTES
        elif before is None or before.end != mapping.start:
            continue
        elif before.permissions == "---p" and not before.path:
            guard_bytes = before.end - max(before.start, reserved_until)
            if 0 < guard_bytes <= _MOST_GUARD_BYTES:
                mapping.use, mapping.use_end = Use.STACK, mapping.start - guard_bytes + stack_bytes
        elif before.use is Use.CODE and before.path:
            end = _end_of_library(before.path, starts.get(before.path, 0))
            if end > mapping.start:  # the zeros at the end of its data (.bss)
                mapping.use, mapping.use_end = Use.CODE, end


@functools.lru_cache(maxsize=4096)
def _extent_of_library(path: str) -> tuple[int, int]:
    """Return the first and the last address of an ELF file's segments, in whole pages; 0, 0 for another file."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return 0, 0
            table, size, count = (
                struct.unpack_from("<Q", head, 32)[0],
                *struct.unpack_from("<HH", head, 54),
            )
            file.seek(table)
            headers = file.read(size * count)
    except (OSError, struct.error) as error:
        pass_on(error)
        return 0, 0
    begins, ends = [], []
    for at in range(0, len(headers) - 55, size):
        kind, _, _, address, _, _, memory_bytes = struct.unpack_from("<IIQQQQQ", headers, at)
        if kind == _LOADED:
            begins.append(address // PAGE_BYTES * PAGE_BYTES)
            ends.append(-(-(address + memory_bytes) // PAGE_BYTES) * PAGE_BYTES)
    return (min(begins), max(ends)) if begins else (0, 0)


_LOADED: Final = 1  # PT_LOAD


def _end_of_library(path: str, start: int) -> int:
    begin, end = _extent_of_library(path)
    return start - begin + end


def cut_joined(mappings: list[Mapping], residency: Residency) -> list[Mapping]:
    """Cut what the kernel joined to a stack or to a library's data: memory that was mapped right above it."""
    cut: list[Mapping] = []
    for mapping in mappings:
        end = mapping.use_end
        if not end or mapping.end <= end:
            cut.append(mapping)
            continue
        pieces, numbers = residency.split(np.array([[mapping.start, end]], dtype=np.int64))
        resident, private = (int(part.sum()) for part in residency.of_ranges(pieces, numbers))
        resident, private = min(resident, mapping.rss), min(private, mapping.private)
        pss = mapping.pss * resident // max(mapping.rss, 1)
        cut += [
            replace(mapping, end=end, rss=resident, private=private, pss=pss),
            replace(
                mapping,
                start=end,
                rss=mapping.rss - resident,
                private=mapping.private - private,
                pss=mapping.pss - pss,
                use=Use.ANONYMOUS,
                use_end=0,
            ),
        ]
    return cut


def _stack_bytes(pid: int) -> int:
    """Return the size of the stacks of new threads, which glibc takes from the limit at the program's start."""
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_STACK)
    except OSError as error:
        pass_on(error)
        return _DEFAULT_STACK_BYTES
    return _DEFAULT_STACK_BYTES if soft in (resource.RLIM_INFINITY, -1) else soft


def _use_by_path(mapping: Mapping, executable: set[str]) -> Use:
    path = mapping.path.removesuffix(" (deleted)")
    if path.startswith(_SHARED_MEMORY):
        return Use.SHARED
    if path.startswith("/dev/"):
        return Use.DEVICE
    if path.startswith("/"):
        return Use.CODE if mapping.path in executable or _LIBRARY.search(path) else Use.FILE
    if path == "[heap]" or "malloc arena" in path:
        return Use.ARENA
    if path == "[stack]" or "pthread stack" in path:
        return Use.STACK
    if path.startswith("[v") or "x" in mapping.permissions:
        return Use.CODE  # the kernel's page of code, and code that was compiled at run time
    return Use.ANONYMOUS


def _has_shape_of_arena(mapping: Mapping, after: Mapping | None) -> bool:
    """Return True for an aligned mapping whose rest, up to the next aligned address, is reserved."""
    if mapping.start % ARENA_BYTES:
        return False
    if mapping.end == mapping.start + ARENA_BYTES:
        return True
    return (
        after is not None
        and after.start == mapping.end
        and after.permissions == "---p"
        and after.end >= mapping.start + ARENA_BYTES
    )


class Residency:
    """Which bytes of some mappings are in memory, and which of those no other process has."""

    def __init__(self, mappings: Sequence[Mapping], pid: int) -> None:
        self._mappings = list(mappings)
        self._pid = pid
        self._starts = np.array([mapping.start for mapping in self._mappings], dtype=np.int64)
        self._ends = np.array([mapping.end for mapping in self._mappings], dtype=np.int64)
        self._pages: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def split(self, ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cut ranges of addresses where mappings begin and end.

        Args:
            ranges: rows of begin and end, which do not overlap, by address.

        Returns:
            The ranges inside of mappings, and the number of the mapping of each.
        """
        if not len(ranges) or not self._mappings:
            return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
        bounds = np.unique(np.concatenate([ranges.ravel(), self._starts, self._ends]))
        low, high = bounds[:-1], bounds[1:]
        of_range = np.searchsorted(ranges[:, 0], low, side="right") - 1
        of_mapping = np.searchsorted(self._starts, low, side="right") - 1
        inside = (of_range >= 0) & (of_mapping >= 0)
        inside &= (low < ranges[:, 1][of_range]) & (low < self._ends[of_mapping])
        return np.stack([low[inside], high[inside]], axis=1), of_mapping[inside]

    def of_ranges(
        self, pieces: NDArray[np.int64], mapping_of: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes in memory of each piece of :meth:`split`, and the private ones among them."""
        resident, private = np.zeros(len(pieces), dtype=np.int64), np.zeros(len(pieces), dtype=np.int64)
        for number in np.unique(mapping_of).tolist():
            mine = mapping_of == number
            begin, end = pieces[mine, 0], pieces[mine, 1]
            mapping = self._mappings[number]
            if mapping.rss == mapping.end - mapping.start and mapping.private in (0, mapping.rss):
                resident[mine] = end - begin
                private[mine] = resident[mine] if mapping.private else 0
            elif mapping.rss:
                present, exclusive = self._sums(number)
                resident[mine] = _up_to(present, end - mapping.start) - _up_to(present, begin - mapping.start)
                private[mine] = _up_to(exclusive, end - mapping.start) - _up_to(
                    exclusive, begin - mapping.start
                )
        return resident, private

    def bytes_of_use(self, memory: range, use: Use) -> int:
        """Return how many bytes of some addresses are in memory and have a use."""
        pieces, numbers = self.split(np.array([[memory.start, memory.stop]], dtype=np.int64))
        has_use = np.array([self._mappings[number].use is use for number in numbers.tolist()], dtype=bool)
        resident, _ = self.of_ranges(pieces[has_use], numbers[has_use])
        return int(resident.sum())

    def resident_pages(self, mapping: Mapping) -> NDArray[np.int64]:
        """Return the addresses of the pages of a mapping that are in memory."""
        if mapping.rss == mapping.end - mapping.start:
            return np.arange(mapping.start, mapping.end, PAGE_BYTES, dtype=np.int64)
        present, _ = self._sums(self._mappings.index(mapping))
        return mapping.start + np.flatnonzero(np.diff(present)) * PAGE_BYTES

    def _sums(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many pages before each page of a mapping are in memory, and how many of them are private."""
        if number not in self._pages:
            mapping = self._mappings[number]
            present, exclusive = (
                np.concatenate([[0], np.cumsum(pages, dtype=np.int64)])
                for pages in _pages_in_memory(mapping, self._pid)
            )
            self._pages[number] = present, exclusive
        return self._pages[number]


def _up_to(sums: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes in memory before an offset, to the byte within a page."""
    page, within = np.divmod(offset, PAGE_BYTES)
    last = np.minimum(page + 1, len(sums) - 1)
    up_to: NDArray[np.int64] = sums[page] * PAGE_BYTES + (sums[last] - sums[page]) * within
    return up_to


_PRESENT, _EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 56)
_READ_BYTES: Final = 1 << 20  # of pagemap at a time: 512 MiB of addresses


def pages_of(pid: int, first: int, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of some pages of a process are in memory, and which of those no other process has.

    Args:
        pid: the process.
        first: number of the first page: its address divided by the size of a page.
        count: how many pages.

    Raises:
        OSError: the process has ended, or the system does not show its pages.
    """
    present, exclusive = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    descriptor = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        done = 0
        while done < count:
            data = os.pread(descriptor, min(_READ_BYTES, (count - done) * 8), (first + done) * 8)
            if not data:
                break
            entries = np.frombuffer(data, dtype=np.uint64)
            present[done : done + len(entries)] = (entries & _PRESENT) != 0
            exclusive[done : done + len(entries)] = (entries & (_PRESENT | _EXCLUSIVE)) == (
                _PRESENT | _EXCLUSIVE
            )
            done += len(entries)
    finally:
        os.close(descriptor)
    return present, exclusive


def _pages_in_memory(mapping: Mapping, pid: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    count = (mapping.end - mapping.start) // PAGE_BYTES
    try:
        return pages_of(pid, mapping.start // PAGE_BYTES, count)
    except OSError as error:
        pass_on(error)  # without it the first pages count as those in memory
    numbers = np.arange(count) * PAGE_BYTES
    return numbers < mapping.rss, numbers < mapping.private


def union_of(ranges: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Return ranges of addresses, sorted. Ranges that overlap or touch are joined."""
    array = np.array(list(ranges), dtype=np.int64).reshape(-1, 2)
    if not len(array):
        return array
    array = array[np.argsort(array[:, 0], kind="stable")]
    reach = np.maximum.accumulate(array[:, 1])
    is_first = np.concatenate([[True], array[1:, 0] > reach[:-1]])
    firsts = np.flatnonzero(is_first)
    lasts = np.concatenate([firsts[1:] - 1, [len(array) - 1]])
    return np.stack([array[firsts, 0], reach[lasts]], axis=1)


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
