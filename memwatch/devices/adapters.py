"""Define one adapter for each kind of device: the host, CUDA, and any other accelerator of torch.

An adapter reads the statistics of the device's allocator and the use of the device, and it saves and restores random
states. `Reserved` has the memory that a caching allocator holds on a device: segments, and in them used and free
blocks. `Failure` has the facts in an out-of-memory error: the requested bytes, and where memory ran out.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import traceback
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import torch

from memwatch._torch.workers import is_raised_again
from memwatch.containers import subclasses_of
from memwatch.device_names import CPU, kind_of
from memwatch.errors import MemoryLimitError
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
_ROUNDING_BYTES: Final = 512
"""Bytes to which an accelerator's caching allocator rounds a block up, from torch's own sources."""
namespace: Final[Any] = torch.cuda
"""torch's module for CUDA, where a device is pretended in it."""
ALLOCATED: Final = "active_allocated"
WAITING: Final = ("active_pending_free", "active_awaiting_free")
"""States of a block that the program has freed and a stream may still use. Versions of torch have different names."""
NOTE_KIND: Final = "out of memory"
"""The kind of a note about an allocator that had no memory left. The note has the bytes that it held at that time."""
_UNITS: Final = {
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60,
}  # fmt: skip
_WORDS: Final = "allocate memory"
"""Part of the message of c10's host allocator, which raises a plain RuntimeError."""
DEFAULT_POOL: Final = (0, 0)
"""torch's number of the pool that gives memory to every tensor. A CUDA graph and a `MemPool` have their own pools."""
_CUDA_DRIVER: Final = "libcuda.so.1"
_RELAXED: Final = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED of the CUDA driver's API."""
_ASKED: Final = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+) ?([KMGTPE]?i?B|bytes)")
"""The requested size in the messages of allocators: the host's, CUDA's, other accelerators', and numpy's."""
_AGAIN: Final = re.compile(r"Caught (\w+) (in DataLoader worker process)?.*\.\nOriginal Traceback")
"""The text of an error that torch raises again for a worker. It has the class and the place of the first error."""
_RAISED_ELSEWHERE: Final = frozenset(
    {("multiprocessing.pool", "RemoteTraceback"), ("concurrent.futures.process", "_RemoteTraceback")}
)
"""Module and class name of the `__cause__` of an error that a pool brings from another process."""


class DeviceUse(NamedTuple):
    """The memory of a device, in bytes.

    Attributes:
        used_bytes: the part in use, by all processes together.
        capacity_bytes: all of its memory.
    """

    used_bytes: int
    capacity_bytes: int


class Adapter(Protocol):
    """One kind of device. The devices of a kind are named as torch names them: `cpu`, `cuda:0`, `xpu:1`."""

    @property
    def names(self) -> list[str]:
        """The devices that the program has begun to use. Reading this never initialises a device."""

    def allocated_bytes(self, name: str) -> int:
        """Return the bytes that the allocator of a device has handed out; 0 if it keeps no count."""

    def reserved_bytes(self, name: str) -> int:
        """Return the bytes that the allocator of a device holds, handed out or not; 0 if it keeps none."""

    @property
    def rounding_bytes(self) -> int:
        """The sizes of all blocks that the allocator hands out are multiples of this."""

    @property
    def alignment_bytes(self) -> int:
        """Every block begins at a multiple of this. The bytes from the end of a block to the next multiple are lost."""

    def statistics(self, name: str) -> Mapping[str, int]:
        """Return the figures of a device's allocator by torch's names for them; empty if it keeps none."""

    def use(self, name: str) -> DeviceUse | None:
        """Return how much memory of a device is in use; None if its backend does not show that."""

    def segments(self, name: str, pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """Return the segments of a device with their blocks, as torch lists them. Empty if torch does not list them.

        Args:
            name: the device.
            pool: torch's number of a pool; by default, the segments of all pools are returned.
        """

    def out_of_memory_count(self, name: str) -> int:
        """Return how many times the allocator of a device had no memory left; 0 if it keeps no count."""

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator of a device."""

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator of a device."""

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return host memory to which bytes of a device are copied fast; it is not initialised."""

    def synchronize(self, name: str) -> None:
        """Wait until a device has done all its work."""


class _MallInfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@cache
def _mallinfo() -> Callable[[], _MallInfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2  # glibc 2.33 and later
    except (AttributeError, OSError, TypeError) as error:
        pass_on(error)
        return None
    function.restype = _MallInfo2
    return function


class Cpu:
    """The adapter of the host; see `memwatch.devices.adapters.Adapter`."""

    @property
    def names(self) -> list[str]:
        """The host alone."""
        return [CPU]

    def allocated_bytes(self, name: str) -> int:
        """Return the bytes that malloc has handed out to the whole process, in about a microsecond."""
        function = _mallinfo()
        if function is None:
            return 0
        info = function()
        return int(info.uordblks + info.hblkhd)

    def reserved_bytes(self, name: str) -> int:
        """Return 0: the memory that malloc keeps is not torch's."""
        return 0

    @property
    def rounding_bytes(self) -> int:
        """1, because torch counts the requested bytes on the host."""
        return 1

    @property
    def alignment_bytes(self) -> int:
        """The alignment that c10 requests from malloc."""
        return 64

    def statistics(self, name: str) -> Mapping[str, int]:
        """Return none: malloc keeps no such figures."""
        return {}

    def use(self, name: str) -> DeviceUse | None:
        """Return None: the rows of the process have the memory of the host."""
        return None

    def segments(self, name: str, pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """Return none: the memory that malloc keeps is not torch's."""
        return []

    def out_of_memory_count(self, name: str) -> int:
        """Return 0: malloc keeps no count."""
        return 0

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator."""
        return torch.default_generator.get_state()

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        torch.default_generator.set_state(state)

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return plain host memory."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self, name: str) -> None:
        """Return at once: the host runs ops as they are called."""


class Accelerator:
    """The adapter of a kind of accelerator; see `memwatch.devices.adapters.Adapter`.

    Args:
        kind: the type of its devices, as `xpu`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @property
    def _module(self) -> Any:
        """Torch's module for the devices; None until a backend registers it."""
        return getattr(torch, self._kind, None)

    @property
    def names(self) -> list[str]:
        """The devices, once the backend is initialised. A backend without `is_initialized` counts as initialised."""
        module = self._module
        if (
            module is None
            or not module.is_available()
            or not getattr(module, "is_initialized", lambda: True)()
        ):
            return []
        return [f"{self._kind}:{index}" for index in range(module.device_count())]

    def allocated_bytes(self, name: str) -> int:
        """Return the bytes that the allocator has handed out; 0 for a backend whose allocator has no statistics."""
        return self._statistic("allocated_bytes.all.current", name)

    def reserved_bytes(self, name: str) -> int:
        """Return the bytes that the allocator holds; 0 for a backend whose allocator has no statistics."""
        return self._statistic("reserved_bytes.all.current", name)

    def out_of_memory_count(self, name: str) -> int:
        """Return how many times the allocator had no memory left; 0 for a backend that does not count."""
        return self._statistic("num_ooms", name)

    def _statistic(self, key: str, name: str) -> int:
        return int(self.statistics(name).get(key, 0))

    def statistics(self, name: str) -> Mapping[str, int]:
        """Return the figures of the allocator; empty for a backend whose allocator has none."""
        try:
            statistics: Mapping[str, int] = torch.accelerator.memory_stats(torch.device(name))
        except (AttributeError, RuntimeError, ValueError) as error:
            pass_on(error)
            return {}
        return statistics

    def use(self, name: str) -> DeviceUse | None:
        """Return how much memory of the device is in use; None for a backend that does not show that."""
        try:
            free_bytes, capacity_bytes = torch.accelerator.get_memory_info(torch.device(name))
        except (AttributeError, RuntimeError, ValueError) as error:
            pass_on(error)
            return None
        return DeviceUse(capacity_bytes - free_bytes, capacity_bytes)

    @property
    def rounding_bytes(self) -> int:
        """The least block of c10's caching allocators."""
        return _ROUNDING_BYTES

    @property
    def alignment_bytes(self) -> int:
        """The same as `rounding_bytes`, because blocks follow each other without gaps."""
        return _ROUNDING_BYTES

    def segments(self, name: str, pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
        """Return the segments of a device. Empty for a backend whose module has no `memory_snapshot`."""
        index = torch.device(name).index or 0
        return [
            segment
            for segment in self._segments_of_all(pool)
            if segment["device"] == index and pool in (None, pool_of(segment))
        ]

    def _segments_of_all(self, pool: tuple[int, int] | None) -> list[dict[str, Any]]:
        """Return the segments of all devices, and at least those of a pool if one is given."""
        list_all: Callable[[], list[dict[str, Any]]] = getattr(self._module, "memory_snapshot", list)
        return list_all()

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator; empty for a backend that shows none."""
        read = getattr(self._module, "get_rng_state", None)
        if read is None:
            return torch.empty(0, dtype=torch.uint8)
        state: torch.Tensor = read(torch.device(name))
        return state

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        if len(state):
            self._module.set_rng_state(state, torch.device(name))

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return pinned host memory, or plain memory for a backend that pins none."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, NotImplementedError) as error:
            pass_on(error)
            return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self, name: str) -> None:
        """Wait until the device has done all its work."""
        torch.accelerator.synchronize(torch.device(name))


class Cuda(Accelerator):
    """The adapter of CUDA devices. It has only the differences to other accelerators."""

    def __init__(self) -> None:
        super().__init__("cuda")

    @property
    def names(self) -> list[str]:
        """The devices, once CUDA is initialised. In some builds, reading their number before would initialise CUDA."""
        if not torch.cuda.is_initialized():
            return []
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    def statistics(self, name: str) -> Mapping[str, int]:
        """Return the figures of the allocator."""
        statistics: Mapping[str, int] = torch.cuda.memory_stats(name)
        return statistics

    def use(self, name: str) -> DeviceUse | None:
        """Return how much memory of the device is in use. A graph that another thread captures is not disturbed."""
        with _relaxed_capture():
            free_bytes, capacity_bytes = torch.cuda.mem_get_info(name)
        return DeviceUse(capacity_bytes - free_bytes, capacity_bytes)

    def _segments_of_all(self, pool: tuple[int, int] | None) -> list[dict[str, Any]]:
        # torch would return the segments of all pools for the number of the default pool
        of_pool = {} if pool in (None, DEFAULT_POOL) else {"mempool_id": pool}
        segments: list[dict[str, Any]] = []
        try:
            segments = torch.cuda.memory_snapshot(include_traces=False, **of_pool)
        except TypeError as error:  # an older torch lists the history too, if one is recorded
            pass_on(error)
            segments = torch.cuda.memory_snapshot()
        except RuntimeError as error:  # cudaMallocAsync has figures, but no list of its blocks
            pass_on(error)
        return segments

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator."""
        return torch.cuda.get_rng_state(name)

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        torch.cuda.set_rng_state(state, name)

    def synchronize(self, name: str) -> None:
        """Wait until the device has done all its work."""
        torch.cuda.synchronize(name)


@contextlib.contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Let this thread call CUDA while another thread captures a graph.

    By default, a capture of one thread makes CUDA refuse some calls of all threads, and such a call ends the capture
    with an error. A thread may leave this rule for itself. Without NVIDIA's driver, nothing is changed.
    """
    exchange = _exchange_of_capture_mode()
    mode = ctypes.c_int(_RELAXED)
    has_left = exchange is not None and exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if exchange is not None and has_left:
            exchange(ctypes.byref(mode))


@cache
def _exchange_of_capture_mode() -> Callable[[Any], int] | None:
    """Return the driver's function that sets the thread's mode and returns the former one; None without it."""
    try:
        driver = ctypes.CDLL(_CUDA_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)  # torch has loaded it
        function: Callable[[Any], int] = driver.cuThreadExchangeStreamCaptureMode
    except (AttributeError, OSError) as error:
        pass_on(error)
        return None
    return function


def pool_of(segment: Mapping[str, Any]) -> tuple[int, int]:
    """Return torch's number of the pool of a segment; the default pool if a backend has no others."""
    first, second = segment.get("segment_pool_id", DEFAULT_POOL)
    return int(first), int(second)


def adapter_of(name: str) -> Adapter:
    """Return the adapter of a device, such as `cpu` or `cuda:0`."""
    return _adapter_of_kind(kind_of(name))


@cache
def _adapter_of_kind(kind: str) -> Adapter:
    if kind == CPU:
        return Cpu()
    return Cuda() if kind == "cuda" else Accelerator(kind)


def devices_in_use() -> list[str]:
    """Return the host, and the devices of the accelerator that the program has begun to use."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = [CPU] if accelerator is None else [CPU, accelerator.type]
    return [name for kind in kinds for name in adapter_of(kind).names]


def has_device(name: str) -> bool:
    """Return False if this machine does not have a device, such as `cuda:9` or `cuda`.

    Call it after the program has ended: some builds of torch initialise the accelerator for the answer.
    """
    kind = kind_of(name)
    if kind in (CPU, "meta"):
        return True
    module = getattr(torch, kind, None)
    if module is None or not getattr(module, "is_available", lambda: True)():
        return False
    names = adapter_of(name).names
    return not names or name == kind or name in names


@dataclass
class Reserved:
    """The memory that an allocator holds on a device, in bytes.

    Attributes:
        segments: number of segments, which are stretches of device memory.
        reserved_bytes: bytes of all segments.
        allocated_bytes: bytes of the blocks in use.
        requested_bytes: bytes that the program requested for these blocks.
        waiting_bytes: bytes of freed blocks that a stream may still use.
        largest_free_bytes: bytes of the largest free block.
    """

    segments: int = 0
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    requested_bytes: int = 0
    waiting_bytes: int = 0
    largest_free_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """The blocks that it could hand out."""
        return self.reserved_bytes - self.allocated_bytes - self.waiting_bytes

    def add_segment(self, nbytes: int) -> None:
        """Count a segment."""
        self.segments += 1
        self.reserved_bytes += nbytes

    def add_block(self, nbytes: int, requested: int, *, allocated: bool, waiting: bool) -> None:
        """Count a block of a segment."""
        if allocated:
            self.allocated_bytes += nbytes
            self.requested_bytes += requested
        elif waiting:
            self.waiting_bytes += nbytes
        else:
            self.largest_free_bytes = max(self.largest_free_bytes, nbytes)


def reserved_in(segments: Iterable[Mapping[str, Any]]) -> Reserved:
    """Return the figures of some segments, as `memory_snapshot()` of torch's modules lists them."""
    held = Reserved()
    for segment in segments:
        held.add_segment(segment["total_size"])
        for block in segment["blocks"]:
            state = block["state"]
            requested = block.get("requested_size", block["size"])
            held.add_block(block["size"], requested, allocated=state == ALLOCATED, waiting=state in WAITING)
    return held


def asked_bytes(error: BaseException) -> int | None:
    """Return the requested bytes from an allocator's error message, as it rounds them, or None.

    numpy's error has the shape and the type of the array.
    """
    if is_of_numpy(error) and len(error.args) == _ARGUMENTS_OF_NUMPY:
        shape, dtype = error.args
        if type(shape) is tuple and isinstance(dtype, np.dtype):
            return math.prod(shape) * dtype.itemsize
    found = _ASKED.search(str(error))
    if found is None:
        return None
    count, unit = found.groups()
    return int(float(count) * _UNITS.get(unit, 1))


_ARGUMENTS_OF_NUMPY: Final = 2
"""The shape and the dtype: `_ArrayMemoryError` of numpy has these two arguments."""


def is_of_numpy(error: BaseException) -> bool:
    """Return whether this is the error of numpy's allocator itself, and not of a subclass."""
    return type(error).__qualname__ == "_ArrayMemoryError" and type(error).__module__.startswith("numpy.")


def is_of_host(error: BaseException) -> bool:
    """Return True if the memory of the host ran out."""
    return not isinstance(error, torch.OutOfMemoryError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the error of an allocator that had no memory left, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and _WORDS in str(error):
        return True
    # torch raises the error of a worker as a RuntimeError if its class does not take a text as its only argument
    again = _AGAIN.match(str(error)) if type(error) is RuntimeError else None
    return again is not None and again[1] in {cls.__name__ for cls in subclasses_of(MemoryError)}


class Failure(NamedTuple):
    """The facts in an out-of-memory error.

    Attributes:
        asked_bytes: the requested bytes, if the allocator's message has them.
        lines: `file:line` of the calls in its traceback.
        by_limit: whether the program's own limit raised it, and not an allocator.
        in_worker: whether a worker process or thread raised it first.
        in_process: whether it was a worker process.
    """

    asked_bytes: int | None
    lines: frozenset[str]
    by_limit: bool
    in_worker: bool
    in_process: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the facts in an error."""
        by_limit = isinstance(error, MemoryLimitError)
        calls = list(traceback.walk_tb(error.__traceback__))
        is_of_pool = any(map(_is_elsewhere, _causes(error)))
        again = bool(calls) and is_raised_again(calls[-1][0].f_code)
        text = _AGAIN.match(str(error)) if again else None
        return cls(
            None if by_limit else asked_bytes(error),
            frozenset(f"{frame.f_code.co_filename}:{line}" for frame, line in calls),
            by_limit,
            again or is_of_pool,
            is_of_pool or (text is not None and text[2] is not None),
        )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause, seen = error.__cause__, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _is_elsewhere(error: BaseException) -> bool:
    return (type(error).__module__, type(error).__name__) in _RAISED_ELSEWHERE
