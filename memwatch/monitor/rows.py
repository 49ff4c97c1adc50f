"""Split the memory of a process into rows: parts that sum to its RSS, each with the source of its figure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil

from memwatch.at_import import malloc_bytes_of_import
from memwatch.errors import OptionError
from memwatch.host_allocators import MallocFigures, PythonFigures, malloc_figures, python_figures
from memwatch.monitor import malloc_sampler
from memwatch.monitor.device_memory import device_memory
from memwatch.monitor.layouts import arrow_library
from memwatch.monitor.mappings import (
    Residency,
    Use,
    cut_joined,
    is_heap_of_arena,
    mmapped_blocks,
    read_mappings,
    union_of,
)
from memwatch.monitor.objects import PythonMemory, TensorMemory, python_memory, tensor_memory
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.words.processes import HOW_ARROW_FREE, HOW_AT_IMPORT, HOW_AT_MONITOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.monitor.device_memory import DeviceMemory
    from memwatch.monitor.mappings import Mapping

TENSORS: Final = "tensors"
PINNED: Final = "pinned tensors"
PYTHON: Final = "Python objects"
PYTHON_FREE: Final = "Python's allocator, free"
NATIVE: Final = "native"
NATIVE_AT_START: Final = "native, at start"
MALLOC_FREE: Final = "malloc, free"
OTHER: Final = "other mappings"
ARROW: Final = "Arrow buffers"
ARROW_FREE: Final = "Arrow's allocator, free"
ANONYMOUS: Final = "malloc and anonymous memory"
FREE_ROWS: Final = frozenset({PYTHON_FREE, MALLOC_FREE, ARROW_FREE})
"""Rows of free memory, which an allocator keeps."""
_MIMALLOC_BEGIN, _MIMALLOC_END = 2 << 40, 30 << 40
"""mimalloc asks the kernel for memory at these addresses (MI_HINT_BASE and MI_HINT_MAX). Without such a request, Linux
gives memory right below the stack."""
_LIBRARIES_NAMED: Final = 3  # in the text about the row "native"; a guess
UNEXPLAINED: Final = frozenset({NATIVE, OTHER, ANONYMOUS})
"""Rows without a known cause. They don't count for coverage, except bytes of malloc whose library is known."""
_MOST_PYTHON_AT_IMPORT: Final = 1 / 5
"""The share of Python objects in the blocks of malloc that the import of torch adds: 17 % in a new process, and 15 %
after the import of pandas and matplotlib."""
_BY_MAPPING: Final = {
    Use.SHARED: ("shared memory", "smaps: /dev/shm, memfd, System V and shared anonymous memory"),
    Use.STACK: ("thread stacks", "smaps: [stack], and memory right above a guard page"),
    Use.CODE: ("code and libraries", "smaps: files with code and what lies in their data"),
    Use.FILE: ("file mappings", "smaps: files that are mapped"),
    Use.DEVICE: ("device files", "smaps: mappings of /dev"),
}

OWN_ROWS: Final = (
    TENSORS, PINNED, PYTHON, PYTHON_FREE, ARROW, ARROW_FREE, NATIVE, NATIVE_AT_START, MALLOC_FREE, OTHER,
    *(name for name, _ in _BY_MAPPING.values()),
)  # fmt: skip
"""The rows that this process may have."""


@dataclass(frozen=True)
class Row:
    """One part of a process's memory, in bytes.

    Attributes:
        row: its name.
        nbytes: its share of RSS.
        private_nbytes: its share of USS, the memory that no other process has.
        how: the source of the figure, in words.
    """

    row: str
    nbytes: int
    private_nbytes: int
    how: str


@dataclass(frozen=True)
class Child:
    """The totals of a process, in bytes. `shared_bytes` is the memory that it shares with others."""

    pid: int
    name: str
    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class ProcessRows:
    """The memory of one process.

    Attributes:
        pid: the process.
        name: its command.
        rss_bytes: its memory in RAM.
        pss_bytes: the same, but each shared page is divided by the number of processes that have it.
        uss_bytes: memory of this process alone.
        rows: parts that sum to `rss_bytes`, and whose private bytes sum to `uss_bytes`.
        children: its child processes and their descendants.
        devices: the memory of the devices that this process uses, which is in none of the figures above; empty for
            other processes.
        notes: sentences about data that could not be read.
        by_type: Python objects by type, with their number and bytes; empty for other processes.
        by_path: bytes by row and file (`file mappings: /data/x.bin`), and of the row "native" by library.
        trimmable_bytes: about what `malloc_trim(0)` would return to the system.
        by_library: bytes of the row "native" by the library that allocated them, as far as malloc is sampled.
    """

    pid: int
    name: str
    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    rows: list[Row]
    children: list[Child] = field(default_factory=list)
    devices: list[DeviceMemory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    by_type: dict[str, tuple[int, int]] = field(default_factory=dict)
    by_path: dict[str, int] = field(default_factory=dict)
    trimmable_bytes: int = 0
    by_library: dict[str, int] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """The share of RSS in rows that name a cause."""
        explained = sum(row.nbytes for row in self.rows if row.row not in UNEXPLAINED)
        explained += sum(self.by_library.values())
        return explained / self.rss_bytes if self.rss_bytes else 1.0

    @property
    def start_share(self) -> float:
        """The share of RSS that was native memory at the start. It is part of `coverage`."""
        return self.nbytes(NATIVE_AT_START) / self.rss_bytes if self.rss_bytes else 0.0

    def nbytes(self, row: str) -> int:
        """Return the bytes of a row, 0 if the row is missing."""
        return sum(each.nbytes for each in self.rows if each.row == row)


@dataclass(frozen=True)
class Known:
    """Figures of this process that the caller has already, so that they are not computed again.

    Attributes:
        native_at_start_bytes: the row "native" when the monitor began. Without it, the start is the import of torch.
        python: the Python objects. An empty one leaves them out.
        tensors: the tensors.
    """

    native_at_start_bytes: int | None = None
    python: PythonMemory | None = None
    tensors: TensorMemory | None = None


def rows_of(
    pid: int | None = None,
    *,
    children: bool = True,
    known: Known | None = None,
) -> ProcessRows:
    """Return the memory of a process; see :func:`memwatch.process_memory`.

    Args:
        pid: the process; by default this one.
        children: whether to list its child processes and their descendants.
        known: figures that the caller has already.

    Raises:
        OptionError: `pid` is not the number of a process.
        ProcessError: the process cannot be read.
    """
    if pid is not None and (isinstance(pid, bool) or not isinstance(pid, int) or pid < 1):
        raise OptionError(f"{pid!r} is not a process; give its number, as `ps` lists it")
    is_own = pid is None or pid == os.getpid()
    number = os.getpid() if pid is None else pid
    samples = malloc_sampler.samples() if is_own else None  # before memwatch allocates anything itself
    mappings = read_mappings(number, is_heap_of_arena=is_heap_of_arena if is_own else None)
    mappings = cut_joined(mappings, Residency(mappings, number))
    notes: list[str] = []
    rows = _rows_by_mapping(mappings)
    by_type: dict[str, tuple[int, int]] = {}
    trimmable_bytes = 0
    by_library: dict[str, int] = {}
    if samples is not None:
        own = _OwnProcess(mappings, samples, known or Known())
        rows = own.rows()
        by_type, trimmable_bytes, notes = own.python.by_type, own.trimmable_bytes, own.notes
        by_library = own.by_library
    else:
        anonymous = [each for each in mappings if each.use in (Use.ARENA, Use.ANONYMOUS)]
        rows.append(
            Row(
                ANONYMOUS,
                sum(each.rss for each in anonymous),
                sum(each.private for each in anonymous),
                "smaps; /proc doesn't tell tensors, Python objects and other blocks of malloc apart",
            )
        )
    rows = sorted((row for row in rows if row.nbytes), key=lambda row: -row.nbytes)
    return ProcessRows(
        pid=number,
        name=_name_of(number),
        rss_bytes=sum(each.rss for each in mappings),
        pss_bytes=sum(each.pss for each in mappings),
        uss_bytes=sum(each.private for each in mappings),
        rows=rows,
        children=_children_of(number, notes) if children else [],
        devices=device_memory(notes) if is_own else [],
        notes=notes,
        by_type=by_type,
        by_path={
            **_by_path(mappings),
            **{f"{NATIVE}: {name}": nbytes for name, nbytes in by_library.items()},
        },
        trimmable_bytes=trimmable_bytes,
        by_library=by_library,
    )


def _rows_by_mapping(mappings: Sequence[Mapping]) -> list[Row]:
    return [
        Row(
            name,
            sum(each.rss for each in mappings if each.use is use),
            sum(each.private for each in mappings if each.use is use),
            how,
        )
        for use, (name, how) in _BY_MAPPING.items()
    ]


def _by_path(mappings: Sequence[Mapping]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in mappings:
        if each.use in _BY_MAPPING and each.rss:
            name = f"{_BY_MAPPING[each.use][0]}: {each.path}"
            found[name] = found.get(name, 0) + each.rss
    return found


class _Left:
    """Bytes in memory that no row has yet. A row gets at most these bytes, so the rows never exceed the total."""

    def __init__(self, nbytes: int, private: int) -> None:
        self.nbytes, self.private = nbytes, private

    def take(self, nbytes: int, private: int | None = None) -> tuple[int, int]:
        """Take bytes, and the private bytes among them. By default, take the same share of the private bytes."""
        taken = min(max(nbytes, 0), self.nbytes)
        if private is None:
            private = self.private * taken // self.nbytes if self.nbytes else 0
        # the rest cannot have more private bytes than bytes
        taken_private = min(max(private, 0), self.private, taken)
        taken_private = max(taken_private, self.private - (self.nbytes - taken))
        self.nbytes -= taken
        self.private -= taken_private
        return taken, taken_private

    def take_all(self) -> tuple[int, int]:
        return self.take(self.nbytes, self.private)


class _OwnProcess:
    """Splits the memory of this process.

    Each row takes its bytes from what the rows before it have left: tensors, free bytes of malloc, Python objects. The
    rest is native.
    """

    def __init__(self, mappings: list[Mapping], samples: NDArray[np.int64], known: Known) -> None:
        # read the allocators first, so that the memory that memwatch allocates below does not count
        self._malloc: MallocFigures | None = malloc_figures()
        self._python: PythonFigures | None = python_figures()
        self._known = known
        self._samples = samples
        self._mappings = mappings
        self._residency = Residency(mappings, os.getpid())
        self._tensors: TensorMemory = known.tensors or tensor_memory()
        self.python: PythonMemory = known.python or python_memory()
        self.notes: list[str] = []
        self.by_library: dict[str, int] = {}
        self.trimmable_bytes = 0 if self._malloc is None else self._malloc.trimmable_bytes

    def rows(self) -> list[Row]:
        """Return the rows, which sum to the mappings' bytes."""
        rows = _rows_by_mapping(self._mappings)
        arenas = [each for each in self._mappings if each.use is Use.ARENA]
        anonymous = [each for each in self._mappings if each.use is Use.ANONYMOUS]
        blocks = mmapped_blocks(anonymous, self._residency) if self._malloc is not None else union_of(())
        if blocks is None:
            self.notes.append(
                "malloc's large blocks were not searched, because there is too much memory; "
                'some of the row "native" may be in "other mappings"'
            )
            blocks = union_of(())
        # malloc: its arenas, and the blocks that have mappings of their own
        arena_rss = sum(each.rss for each in arenas)
        rest = _Left(sum(each.rss for each in anonymous), sum(each.private for each in anonymous))
        blocks_rss, blocks_private = rest.take(*self._in_memory(blocks))
        malloc = _Left(arena_rss + blocks_rss, sum(each.private for each in arenas) + blocks_private)
        malloc_ranges = union_of([*map(tuple, blocks.tolist()), *((each.start, each.end) for each in arenas)])
        other_ranges = _without(union_of((each.start, each.end) for each in anonymous), blocks)

        for name, ranges, how in (
            (PINNED, self._tensors.pinned, "tensors that gc lists in pinned memory; pages by pagemap"),
            (TENSORS, self._tensors.ranges, self._how_tensors()),
        ):
            in_malloc = malloc.take(*self._in_memory(_common(ranges, malloc_ranges)))
            in_rest = rest.take(*self._in_memory(_common(ranges, other_ranges)))
            rows.append(Row(name, in_malloc[0] + in_rest[0], in_malloc[1] + in_rest[1], how))

        rows.append(Row(MALLOC_FREE, *malloc.take(self._free_in_memory(arena_rss)), self._how_free()))
        rows += self._python_rows(malloc, rest, malloc_ranges, other_ranges)
        arrow_bytes, is_of_malloc = _arrow_memory()
        arrow = (malloc if is_of_malloc else rest).take(arrow_bytes)
        rows.append(Row(ARROW, *arrow, "pyarrow.total_allocated_bytes()"))
        if not is_of_malloc:
            of_allocator = self._mappings_of_mimalloc(anonymous)
            free = rest.take(
                sum(each.rss for each in of_allocator) - arrow[0],
                sum(each.private for each in of_allocator) - arrow[1],
            )
            rows.append(Row(ARROW_FREE, *free, HOW_ARROW_FREE))
        rows += self._native_rows(malloc)
        if not self._residency.is_whole:
            self.notes.append(
                "memwatch did not read which pages of the largest mappings are in memory, because they have too many "
                "addresses; their memory may be in a wrong row"
            )
        rows.append(
            Row(OTHER, *rest.take_all(), "smaps: private memory of mmap that no allocator above claims")
        )
        return rows

    def _in_memory(self, ranges: NDArray[np.int64]) -> tuple[int, int]:
        resident, private = self._residency.of_ranges(*self._residency.split(ranges))
        return int(resident.sum()), int(private.sum())

    def _how_tensors(self) -> str:
        graphs = " and autograd's graphs hold" if self._tensors.with_graphs else ""
        return f"{self._tensors.count} tensors that gc lists{graphs}; pages by pagemap"

    def _free_in_memory(self, arena_rss: int) -> int:
        """Return the free bytes of arenas in memory: pages that aren't in memory count as free ones first."""
        if self._malloc is None:
            return 0
        used = self._malloc.arena_bytes - self._malloc.free_bytes
        return min(self._malloc.free_bytes, max(arena_rss - used, 0))

    def _how_free(self) -> str:
        if self._malloc is None:
            return ""
        return (
            f"malloc_info: free in {self._malloc.arenas} arenas; "
            f"malloc_trim would return about {format_bytes(self.trimmable_bytes)}"
        )

    def _mappings_of_mimalloc(self, anonymous: Sequence[Mapping]) -> list[Mapping]:
        """Return the mappings of mimalloc, Arrow's allocator by default, that have buffers of pyarrow.

        Other libraries may have a mimalloc of their own, and pyarrow may show buffers of other allocators. So a mapping
        counts only if it is at an address where mimalloc takes memory and has a buffer of pyarrow.
        """
        addresses = self.python.arrow_addresses
        return [
            each
            for each in anonymous
            if _MIMALLOC_BEGIN <= each.start < _MIMALLOC_END
            and any(each.start <= address < each.end for address in addresses)
        ]

    def _python_rows(
        self, malloc: _Left, rest: _Left, malloc_ranges: NDArray[np.int64], other_ranges: NDArray[np.int64]
    ) -> list[Row]:
        of_tensors = np.concatenate([self._tensors.ranges, self._tensors.pinned])
        ranges = _without(self.python.ranges, union_of(map(tuple, of_tensors.tolist())))
        in_malloc, _ = self._in_memory(_common(ranges, malloc_ranges))
        in_malloc_blocks = malloc.take(self.python.large_bytes + in_malloc)
        in_mappings = rest.take(*self._in_memory(_common(ranges, other_ranges)))
        large = in_malloc_blocks[0] + in_mappings[0], in_malloc_blocks[1] + in_mappings[1]
        if self._python is None:
            self.notes.append(
                "Python's allocator of small objects gives no figures here, so small objects are not a row of their "
                "own (with PYTHONMALLOC=malloc, they have no allocator of their own)"
            )
            return [Row(PYTHON, *large, "gc: objects above 512 B and mmap")]
        small = rest.take(self._python.used_bytes)
        free = rest.take(self._python.arena_bytes - self._python.used_bytes)
        return [
            Row(
                PYTHON,
                small[0] + large[0],
                small[1] + large[1],
                "pymalloc: blocks in use; gc: objects above 512 B, by sys.getsizeof, and mmap",
            ),
            Row(PYTHON_FREE, *free, "pymalloc: arenas without the blocks in use"),
        ]

    def _native_rows(self, malloc: _Left) -> list[Row]:
        how = "malloc_info: in use, and neither a tensor nor a Python object that memwatch finds"
        at_start_bytes, how_start = self._known.native_at_start_bytes, HOW_AT_MONITOR
        if at_start_bytes is None:
            at_start_bytes, how_start = self._native_at_import(), HOW_AT_IMPORT
        rows = []
        if at_start_bytes is not None:
            rows.append(Row(NATIVE_AT_START, *malloc.take(at_start_bytes), how_start))
        native = malloc.take_all()
        self.by_library = self._libraries(native[0])
        largest = sorted(self.by_library.items(), key=lambda each: -each[1])[:_LIBRARIES_NAMED]
        if largest:
            how += "; samples of malloc: " + ", ".join(
                f"{name} {format_bytes(size)}" for name, size in largest
            )
        return [*rows, Row(NATIVE, *native, how)]

    def _native_at_import(self) -> int | None:
        """Return the native part of the blocks of malloc that the import of torch added; None if it is not known.

        The bytes of its Python objects are not known. They are at most the bytes of all Python objects now.
        """
        used_bytes = malloc_bytes_of_import()
        if used_bytes is None:
            return None
        most_bytes = int(_MOST_PYTHON_AT_IMPORT * used_bytes)
        # 0 if the objects were not added up
        return used_bytes - min(self.python.large_bytes or most_bytes, most_bytes)

    def _libraries(self, native_bytes: int) -> dict[str, int]:
        """Return the bytes of the row "native" by library. Estimates that exceed the row shrink by one factor."""
        if not len(self._samples):
            return {}
        tensors = np.concatenate([self._tensors.ranges, self._tensors.pinned])
        known = union_of(map(tuple, tensors.tolist()))

        def is_tensor(addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
            return _covers(known, addresses) if len(known) else np.zeros(len(addresses), dtype=bool)

        found, note = malloc_sampler.bytes_by_library(
            self._samples, self._mappings, self._each_in_memory, is_tensor
        )
        if note:
            self.notes.append(note)
        share = min(native_bytes / max(sum(found.values()), 1), 1.0)
        return {name: int(nbytes * share) for name, nbytes in found.items() if nbytes * share >= 1}

    def _each_in_memory(self, ranges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes in memory of each of some ranges, which are sorted and do not overlap."""
        pieces, numbers = self._residency.split(ranges)
        resident, _ = self._residency.of_ranges(pieces, numbers)
        found = np.zeros(len(ranges), dtype=np.int64)
        if len(pieces):
            np.add.at(found, np.searchsorted(ranges[:, 0], pieces[:, 0], side="right") - 1, resident)
        return found


def _arrow_memory() -> tuple[int, bool]:
    """Return the bytes that Arrow's default pool has allocated, and whether they come from malloc.

    The pool has an allocator of its own (mimalloc or jemalloc) unless ARROW_DEFAULT_MEMORY_POOL is "system". pyarrow is
    never imported here.
    """
    library = arrow_library()
    if not library:
        return 0, False
    try:
        pool = library["default_memory_pool"]()
        return int(pool.bytes_allocated()), pool.backend_name == "system"
    except Exception as error:  # another version of pyarrow, or an import that is not finished
        pass_on(error)
        return 0, False


def _common(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranges that are in both lists."""
    if not len(first) or not len(second):
        return union_of(())
    bounds = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    low, high = bounds[:-1], bounds[1:]
    inside = _covers(first, low) & _covers(second, low)
    return np.stack([low[inside], high[inside]], axis=1)


def _without(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the parts of ranges that are in no range of another list."""
    if not len(first) or not len(second):
        return first
    bounds = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    low, high = bounds[:-1], bounds[1:]
    inside = _covers(first, low) & ~_covers(second, low)
    return np.stack([low[inside], high[inside]], axis=1)


def _covers(ranges: NDArray[np.int64], addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
    at = np.searchsorted(ranges[:, 0], addresses, side="right") - 1
    covers: NDArray[np.bool_] = (at >= 0) & (addresses < ranges[np.maximum(at, 0), 1])
    return covers


def _name_of(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error as error:
        pass_on(error)
        return ""


def _children_of(pid: int, notes: list[str]) -> list[Child]:
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.Error as error:
        pass_on(error)
        return []
    children = []
    for process in processes:
        try:
            children.append(_figures_of(process))
        except psutil.AccessDenied as error:  # noqa: PERF203
            pass_on(error)
            notes.append(f"process {process.pid}, which this one started, may not be read")
        except psutil.Error as error:  # it has ended
            pass_on(error)
    return children


def python_processes() -> list[Child]:
    """Return the Python processes that this user may read, largest first; this one is left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and "python" in os.path.basename(process.exe()):
                found.append(_figures_of(process))
        except psutil.Error as error:  # noqa: PERF203
            pass_on(error)
    return sorted(found, key=lambda process: -process.rss_bytes)


def _figures_of(process: psutil.Process) -> Child:
    memory: Any = process.memory_full_info()
    rss, pss, uss = int(memory.rss), int(memory.pss), int(memory.uss)
    return Child(process.pid, process.name(), rss, pss, uss, max(rss - uss, 0))
