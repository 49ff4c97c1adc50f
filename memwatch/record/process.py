"""Record the process: its command, its place in a job, the processes that it starts, and its accelerators."""

from __future__ import annotations

import collections
import multiprocessing.process
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psutil
import torch

from memwatch.capture.rows import ProcessPartsRow, ProcessRow
from memwatch.capture.schema import NONE
from memwatch.device_names import is_host
from memwatch.devices import NOTE_KIND, adapter_of, devices_in_use
from memwatch.devices.adapters import reserved_in
from memwatch.heap.classes import class_ids
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.host_allocators import malloc_figures, python_figures
from memwatch.job import CHILDREN, JobPlace, has_process_group
from memwatch.patches import Patches
from memwatch.record.clock import ticks
from memwatch.record.tables.rows import Rows
from memwatch.signal_handlers import pass_on, suppress
from memwatch.words.processes import StartedAs, reserved_text, started_text

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_LOADERS: Final = "torch.utils.data."
"""Start of the module name of the function that DataLoader workers run."""
_MOST_TIMES: Final = 1_000
"""Starts of processes whose times are kept one by one. A guess: an epoch with four workers has four."""
_PLAIN: Final = class_ids(type(None), bool, int, float, str, bytes)
_RUN: Final = multiprocessing.process.BaseProcess.run
_forks: Final = [0]  # of this process so far; os.register_at_fork cannot be undone
_counting: Final[list[StartedProcesses]] = []


def _forked() -> None:
    _forks[0] += 1
    for each in _counting:
        each.forked()


os.register_at_fork(after_in_parent=_forked)


class StartedProcesses:
    """The processes that start between `start` and `stop`, by kind.

    Attributes:
        times: the times at which a process started that can read the memory of this one. A fork has all of it.
            `multiprocessing` sends the arguments to other processes, which may contain tensors. A program has none.
            Each entry has the ticks of the first and the last start; only the last entry may be about more than one.
    """

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []
        self._counts: collections.Counter[StartedAs] = collections.Counter()
        self._unreached: collections.Counter[StartedAs] = collections.Counter()
        self._patches = Patches()
        self._forks = 0
        self._threads_in_popen: set[int] = set()

    def start(self) -> None:
        """Begin to count."""
        self._forks = _forks[0]
        _counting.append(self)
        self._patches.put(multiprocessing.process.BaseProcess, "start", self._process)
        self._patches.put(subprocess.Popen, "__init__", self._popen)

    def stop(self) -> None:
        """Count no more."""
        self._patches.take_off()
        if self in _counting:
            _counting.remove(self)
        if forks := _forks[0] - self._forks:
            self._counts[StartedAs.FORK] = self._unreached[StartedAs.FORK] = forks

    @property
    def text(self) -> str:
        """The note about them. Empty if none started."""
        if not self._counts.total():
            return ""
        return started_text(self._counts, self._unreached, asked=CHILDREN in os.environ)

    def forked(self) -> None:
        """Keep the time of a fork. `Popen` forks for `preexec_fn`: another program replaces the memory at once."""
        if threading.get_ident() not in self._threads_in_popen:
            self._add_time()

    def _add_time(self) -> None:
        """Keep the present time as that of a start."""
        now = ticks()
        if len(self.times) < _MOST_TIMES:
            self.times.append((now, now))
        else:  # memory that was alive between the two may have been read too
            self.times[-1] = (self.times[-1][0], now)

    def _process(self, start: Callable[[Any], Any], process: Any) -> Any:
        before, target = _forks[0], getattr(process, "_target", None)
        is_worker = str(getattr(target, "__module__", "")).startswith(_OF_LOADERS)
        may_send = _may_send_tensors(process)  # the start drops the arguments
        started = start(process)
        if _forks[0] == before and may_send:  # it is no fork: spawned, or forked by a server
            self._add_time()
        self._forks += _forks[0] - before  # it is counted by its kind below, not as a fork
        self._counts[StartedAs.LOADER_WORKER if is_worker else StartedAs.MULTIPROCESSING] += 1
        return started

    def _popen(self, init: Callable[..., None], popen: Any, args: Any, *rest: Any, **options: Any) -> None:
        before, thread = _forks[0], threading.get_ident()
        self._threads_in_popen.add(thread)
        try:
            init(popen, args, *rest, **options)
        finally:
            self._threads_in_popen.discard(thread)
            self._forks += _forks[0] - before
        if _is_python(options.get("executable") or args):
            self._counts[StartedAs.PYTHON] += 1
            environment = options.get("env")
            self._unreached[StartedAs.PYTHON] += (
                CHILDREN in os.environ and environment is not None and CHILDREN not in environment
            )


def _may_send_tensors(process: Any) -> bool:
    """Return True unless `multiprocessing` sends a process only numbers and texts. No code of the program runs."""
    attributes = instance_dict(process) or {}
    positional, named = attributes.get("_args"), attributes.get("_kwargs")
    runs = next(type_dict(base)["run"] for base in mro_of(type(process)) if "run" in type_dict(base))
    if runs is not _RUN or type(positional) is not tuple or type(named) is not dict:
        return True  # an object of its own class is sent whole
    return any(id(type(argument)) not in _PLAIN for argument in (*positional, *named.values()))


def _is_python(command: Any) -> bool:
    """Return True for a command whose first word is a Python interpreter."""
    try:
        text = os.fsdecode(command)
    except TypeError as error:  # a list of words
        pass_on(error)
        words = [os.fsdecode(word) for word in command]
    else:
        words = [text] if os.path.exists(text) else shlex.split(text)
    name = os.path.basename(words[0]) if words else ""
    return name.startswith(("python", "pypy")) or name == os.path.basename(sys.executable)


class JobPlaceSampler:
    """Keep this process's place in its job, from torch.distributed or else from the environment."""

    def __init__(self) -> None:
        self._place = JobPlace.here()
        self._patches = Patches()

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the place."""
        self.look()
        return self._place.meta

    def look(self) -> None:
        """Read the place once there is a process group. It stays known when the group is destroyed."""
        if self._place.backend is None and has_process_group():
            self._place = JobPlace.here()

    def start(self) -> None:
        """Read the place before each process group is destroyed."""
        if torch.distributed.is_available():
            self._patches.put(torch.distributed, "destroy_process_group", self._destroyed)

    def stop(self) -> None:
        """End it."""
        self._patches.take_off()

    def _destroyed(self, destroy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.look()
        return destroy(*args, **kwargs)


_PARTS_CPU_RATIO: Final = 0.005
"""The share of one processor that the readings of the allocators may take. A reading takes 0.2 ms in a small program
and 5 ms in a program with 200,000 free pieces in malloc, because malloc lists them all."""


class ProcessSampler:
    """Append rows of `process` and `process_parts` on request, and note the processes that started.

    Args:
        note: called with the kind and the text of a note.

    Attributes:
        rows: rows of `process`.
        parts: rows of `process_parts`.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self.rows, self.parts = Rows(), Rows()
        self._parts_from_s = 0.0
        self._note = note
        self._process = psutil.Process()
        self._job_place = JobPlaceSampler()
        self._children = StartedProcesses()

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the place in the job."""
        return self._job_place.meta

    @property
    def start_times(self) -> list[tuple[int, int]]:
        """The times at which processes started that can read this one's memory, in ticks: first and last of each."""
        return self._children.times

    def start(self) -> None:
        """Begin to see process groups and starting processes."""
        self._job_place.start()
        self._children.start()

    def stop(self) -> None:
        """Stop, and note which processes started."""
        self._children.stop()
        self._job_place.stop()
        if self._children.text:
            self._note("children", self._children.text)

    def sample(self, *, at_bound: bool = False) -> None:
        """Append a row of `process`, and one of `process_parts` unless the last reading is too recent.

        Args:
            at_bound: whether the block begins or ends now. Then there are always both rows.
        """
        self.rows += ProcessRow(
            time_ticks=ticks(),
            rss_bytes=self._process.memory_info().rss,
            available_bytes=psutil.virtual_memory().available,
        )
        self._job_place.look()
        self.read_parts(at_bound=at_bound)

    def read_parts(self, *, at_bound: bool = False) -> None:
        """Append a row of `process_parts` unless the last reading is too recent for its cost."""
        if not at_bound and time.monotonic() < self._parts_from_s:
            return
        before_s = time.thread_time()
        with suppress(OSError, MemoryError):  # the next reading may succeed
            rss_bytes, file_bytes = _resident_bytes()
            malloc, python = malloc_figures(), python_figures()
            if rss_bytes and malloc is not None:
                used, free = (
                    (NONE, NONE)
                    if python is None
                    else (python.used_bytes, python.arena_bytes - python.used_bytes)
                )
                self.parts += ProcessPartsRow(
                    time_ticks=ticks(),
                    rss_bytes=rss_bytes,
                    file_bytes=file_bytes,
                    python_bytes=used,
                    python_free_bytes=free,
                    malloc_free_bytes=malloc.free_bytes,
                )
        self._parts_from_s = time.monotonic() + (time.thread_time() - before_s) / _PARTS_CPU_RATIO


def _resident_bytes() -> tuple[int, int]:
    """Return RSS and the part of it that belongs to files; zeros on a system without these figures."""
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
    except FileNotFoundError as error:
        pass_on(error)
        return 0, 0
    found = {name: int(kib) * 1024 for name, kib in _RESIDENT.findall(text)}
    return found.get(b"VmRSS", 0), found.get(b"RssFile", 0)


_RESIDENT: Final = re.compile(rb"^(VmRSS|RssFile):\s+(\d+) kB", re.MULTILINE)


ByDevice = dict[str, int]


class AcceleratorMemory:
    """Read the accelerators' allocators at the beginning, at the end and when memory runs out.

    Args:
        note: keeps a sentence for the report.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._entry: dict[str, ByDevice] = {}
        self._end: dict[str, Any] = {}
        self._out_of_memory: ByDevice = {}

    def begin(self) -> None:
        """Read the allocated and reserved bytes at the beginning of the block."""
        devices = _accelerators()
        self._entry = {
            "entry_allocated_bytes": {name: adapter_of(name).allocated_bytes(name) for name in devices},
            "entry_reserved_bytes": {name: adapter_of(name).reserved_bytes(name) for name in devices},
            "rounding_bytes": {name: adapter_of(name).rounding_bytes for name in devices},
        }
        self._out_of_memory = _out_of_memory_counts()

    def op_failed(self) -> None:
        """Note the memory in an allocator that had too little left for the op that raised."""
        with suppress(Exception):  # the program's own error is on its way
            for name, count in _out_of_memory_counts().items():
                if count > self._out_of_memory.get(name, 0):
                    self._out_of_memory[name] = count
                    held = reserved_in(adapter_of(name).segments(name))
                    if held.segments:
                        self._note(NOTE_KIND, f"{name}: when memory ran out {reserved_text(held)}")

    def end(self) -> None:
        """Read the reserved bytes at the end of the block."""
        devices = _accelerators()
        self._end = {
            "reserved_bytes": {name: adapter_of(name).reserved_bytes(name) for name in devices},
            "segments": {name: _extents(name) for name in devices},
        }

    @property
    def entry_bytes(self) -> ByDevice:
        """The allocated bytes at the beginning of the block."""
        return self._entry.get("entry_allocated_bytes", {})

    @property
    def meta(self) -> dict[str, Any]:
        """The entries of the recording's metadata."""
        return {**self._entry, **self._end}


def _accelerators() -> list[str]:
    return [name for name in devices_in_use() if not is_host(name)]


def _out_of_memory_counts() -> ByDevice:
    return {name: adapter_of(name).out_of_memory_count(name) for name in _accelerators()}


def _extents(name: str) -> list[tuple[int, int]]:
    """Return address and size of each segment."""
    return [(segment["address"], segment["total_size"]) for segment in adapter_of(name).segments(name)]
