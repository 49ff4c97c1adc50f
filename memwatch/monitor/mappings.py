"""Read the mappings of a process from the kernel: their uses, their pages in memory, and malloc's blocks in them."""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
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
_DEFAULT_STACK_BYTES: Final = 8 << 20  # Linux's default limit, for a process whose own limit is not readable
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
        is_heap_of_arena: returns whether an address has the header of a heap of malloc. Without this function, the
            shape of the mapping decides.

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
    # the kernel lists [vsyscall] for every process, but it has no memory of the process
    return [mapping for mapping in mappings if mapping.path != "[vsyscall]"]


def _classify(
    mappings: list[Mapping], is_heap_of_arena: Callable[[int], bool] | None, stack_bytes: int
) -> None:
    executable = {mapping.path for mapping in mappings if "x" in mapping.permissions}
    for mapping in mappings:
        mapping.use = _use_by_path(mapping, executable)
    starts: dict[str, int] = {}  # path of a file -> address of its first page
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
    """Cut mappings of stacks and of library data, if the kernel joined memory to them that was mapped right above."""
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
    """Return True for a mapping that begins at an aligned address, if all addresses up to the next one are reserved."""
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
    """Finds the bytes of some mappings that are in memory, and those among them that no other process has."""

    def __init__(self, mappings: Sequence[Mapping], pid: int) -> None:
        self._mappings = list(mappings)
        self._starts = np.array([mapping.start for mapping in self._mappings], dtype=np.int64)
        self._ends = np.array([mapping.end for mapping in self._mappings], dtype=np.int64)
        self._map = PageMap(pid)
        self._pages: dict[int, tuple[PageRuns, PageRuns]] = {}

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
                present, exclusive = self._runs(number)
                resident[mine] = present.bytes_before(end) - present.bytes_before(begin)
                private[mine] = exclusive.bytes_before(end) - exclusive.bytes_before(begin)
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
        present, _ = self._runs(self._mappings.index(mapping))
        return present.numbers() * PAGE_BYTES

    @property
    def is_whole(self) -> bool:
        """Whether all pages that were asked for have been read."""
        return self._map.is_whole

    def _runs(self, number: int) -> tuple[PageRuns, PageRuns]:
        """Return the pages of a mapping that are in memory, and the private ones among them."""
        if number not in self._pages:
            mapping = self._mappings[number]
            first, end = mapping.start // PAGE_BYTES, mapping.end // PAGE_BYTES
            try:
                pages = self._map.pages(first, end - first)
            except OSError as error:
                pass_on(error)
                nothing = PageRuns(union_of(()))
                pages = nothing, nothing, first
            present, exclusive, read_until = pages
            self._pages[number] = (
                present.filled_up(read_until, end, mapping.rss // PAGE_BYTES),
                exclusive.filled_up(read_until, end, mapping.private // PAGE_BYTES),
            )
        return self._pages[number]


class PageRuns:
    """Pages of a process, as runs of neighbours. A sparse mapping has few runs, however many addresses it has.

    Args:
        runs: rows of the number of the first page of a run, and of the page after its last one, sorted.
    """

    def __init__(self, runs: NDArray[np.int64]) -> None:
        self._runs = runs
        lengths = runs[:, 1] - runs[:, 0]
        self._before = np.cumsum(lengths) - lengths
        self.count = int(lengths.sum())

    def numbers(self) -> NDArray[np.int64]:
        """Return the numbers of all the pages."""
        lengths = self._runs[:, 1] - self._runs[:, 0]
        numbers: NDArray[np.int64] = np.repeat(self._runs[:, 0] - self._before, lengths)
        return numbers + np.arange(self.count)

    def bytes_before(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes of the pages lie before each address."""
        if not self.count:
            return np.zeros(len(addresses), dtype=np.int64)
        starts, ends = (self._runs[:, side] * PAGE_BYTES for side in (0, 1))
        at = np.maximum(np.searchsorted(starts, addresses, side="right") - 1, 0)
        within = np.clip(addresses - starts[at], 0, ends[at] - starts[at])
        before: NDArray[np.int64] = self._before[at] * PAGE_BYTES + within
        return before

    def filled_up(self, begin: int, end: int, count: int) -> PageRuns:
        """Return `count` pages: these pages, and the missing ones at the first pages of a part that nobody has read.

        Args:
            begin: the first page of that part.
            end: the page behind its last one.
            count: how many pages there are, by another figure of the kernel.
        """
        missing = min(count - self.count, end - begin)
        return self if missing <= 0 else PageRuns(np.append(self._runs, [[begin, begin + missing]], axis=0))


_PRESENT, _EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 56)
_ENTRY_BYTES: Final = 8  # of a page in /proc/PID/pagemap
_ENTRIES_AT_ONCE: Final = 1 << 17  # 1 MiB of entries; a guess
MOST_ENTRIES: Final = 1 << 24
"""Entries of pages that are not in memory to read in all: 64 GiB of addresses, 0.15 s of processor time. Linux before
6.7 cannot skip them."""
_SCAN: Final = 0xC0606610  # the request PAGEMAP_SCAN, which Linux has since 6.7
_SCAN_FIELDS: Final = struct.Struct("=12Q")
_SCAN_REACHED: Final = 4  # the field of the address where the search ended
_SCANNED_PRESENT: Final = 1 << 3  # PAGE_IS_PRESENT
_RUNS_AT_ONCE: Final = 4096  # runs of pages that one call of PAGEMAP_SCAN returns; a guess
_PAGES_BETWEEN: Final = 512
"""Runs with fewer pages between them are read in one call, which copies 4 KiB at most for that. A guess."""


class PageMap:
    """Reads which pages of a process are in memory. Its cost depends on the used memory, not on the address space.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._entries_left = MOST_ENTRIES
        self.is_whole = True

    def pages(self, first: int, count: int) -> tuple[PageRuns, PageRuns, int]:
        """Return the pages that are in memory, those among them that no other process has, and where the reading ended.

        Args:
            first: number of the first page: its address divided by the size of a page.
            count: how many pages.

        Raises:
            OSError: the process has ended, or the system does not show its pages.
        """
        present: list[NDArray[np.int64]] = []
        exclusive: list[NDArray[np.int64]] = []
        descriptor = os.open(f"/proc/{self._pid}/pagemap", os.O_RDONLY)
        try:
            spans, end = self._spans(descriptor, first, first + count)
            for begin, until in spans:
                for at in range(begin, until, _ENTRIES_AT_ONCE):
                    number = min(_ENTRIES_AT_ONCE, until - at)
                    data = os.pread(descriptor, number * _ENTRY_BYTES, at * _ENTRY_BYTES)
                    flags = np.frombuffer(data, dtype=np.uint64) & (_PRESENT | _EXCLUSIVE)
                    present.append(at + _runs_of(flags >= _PRESENT))
                    exclusive.append(at + _runs_of(flags == (_PRESENT | _EXCLUSIVE)))
        finally:
            os.close(descriptor)
        return _joined(present), _joined(exclusive), end

    def _spans(self, descriptor: int, first: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """Return the parts of some pages that may be in memory, and the page where the search ended."""
        try:
            return _present_spans(descriptor, first, end), end
        except OSError as error:  # an older kernel
            pass_on(error)
        number = min(end - first, self._entries_left)
        self._entries_left -= number
        self.is_whole &= first + number == end
        return [(first, first + number)], first + number


def _present_spans(descriptor: int, first: int, end: int) -> list[tuple[int, int]]:
    """Return begin and end of runs of pages in memory, together with short gaps between them.

    Raises:
        OSError: the kernel cannot search for the pages.
    """
    spans: list[tuple[int, int]] = []
    vector = np.zeros((_RUNS_AT_ONCE, 3), dtype=np.uint64)  # begin, end and flags of each run
    at, until = first * PAGE_BYTES, end * PAGE_BYTES
    while at < until:
        request = bytearray(
            _SCAN_FIELDS.pack(
                *(_SCAN_FIELDS.size, 0, at, until, 0, vector.ctypes.data, len(vector), 0),
                *(0, _SCANNED_PRESENT, 0, _SCANNED_PRESENT),
            )
        )
        found = fcntl.ioctl(descriptor, _SCAN, request, True)
        runs = vector[:found, :2].astype(np.int64) // PAGE_BYTES
        is_first = np.diff(runs[:, 0], prepend=-_PAGES_BETWEEN) >= 0
        is_first[1:] = runs[1:, 0] - runs[:-1, 1] >= _PAGES_BETWEEN
        begins = np.flatnonzero(is_first)
        lasts = np.append(begins[1:] - 1, found - 1)[: len(begins)]
        spans += zip(runs[begins, 0].tolist(), runs[lasts, 1].tolist(), strict=True)
        reached = _SCAN_FIELDS.unpack(request)[_SCAN_REACHED]
        if reached <= at:
            raise OSError(errno.ENOTTY, "the kernel did not search")
        at = reached
    return spans


def _runs_of(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return begin and end of each run of true flags."""
    edges = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges).reshape(-1, 2)


def _joined(runs: list[NDArray[np.int64]]) -> PageRuns:
    return PageRuns(_union(np.concatenate([*runs, union_of(())])))


def union_of(ranges: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Return ranges of addresses, sorted. Ranges that overlap or touch are joined."""
    return _union(np.array(list(ranges), dtype=np.int64).reshape(-1, 2))


def _union(array: NDArray[np.int64]) -> NDArray[np.int64]:
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


_MMAPPED: Final = 2  # the bit IS_MMAPPED in the size of a block of glibc
_FLAGS: Final = 7  # the three bits of that size that are flags
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
    """Group adjacent mappings, because numpy's advice to the kernel can divide the mapping of a large array."""
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
