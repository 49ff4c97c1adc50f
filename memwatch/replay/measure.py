"""Measure the peak of a stretch of code by the allocator's own events, independently of the recorder.

torch's kineto profiler reports every allocation and free of c10's allocators on its own thread, with address and
signed bytes. No op is recorded beside them, so that measuring costs little.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from memwatch._torch import profiler
from memwatch._torch.profiler import without_kineto_lines
from memwatch.device_names import is_host
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.encoding.values import Value


@dataclass
class Measured:
    """The result of `measure_peak`: bytes that were allocated in the block and live at once, at most."""

    peak_increase_bytes: int = 0


@contextlib.contextmanager
def measure_peak(device: str) -> Iterator[Measured]:
    """Yield the result of measuring the block on a device (`cpu`, `cuda:0`); it is filled in at the end.

    Raises:
        MemwatchError: a profiler is running already, or this torch reports no allocator events.
    """
    if profiler.is_running():
        raise MemwatchError("a profiler is running, so the peak cannot be measured; leave its block first")
    measured = Measured()
    with without_kineto_lines():
        leave_scope = profiler.start_allocator_events(of_accelerators=not is_host(device))
    try:
        yield measured
    finally:
        leave_scope()
        with without_kineto_lines():
            events = profiler.stop_allocator_events()
    measured.peak_increase_bytes = _peak(_events(events, device))


class AllocatorWindow:
    """The allocator's events from a start to a stop, with marks between them.

    A mark is an allocation of one byte that lives until the stop. The position of this allocation among the events
    shows which events came before the mark.

    Args:
        device: device whose bytes count.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._marks: list[torch.Tensor] = []
        self._names: list[str] = []
        self._thread = threading.get_ident()
        atexit.register(self._stop_at_exit)
        with without_kineto_lines():
            self._leave: Callable[[], object] = profiler.start_allocator_events(
                of_accelerators=not is_host(device)
            )

    def mark(self, name: str) -> None:
        """Set a mark. It begins a stretch of this name."""
        self._marks.append(torch.empty(1, dtype=torch.uint8, device=self._device))
        self._names.append(name)

    def stop(self) -> list[Stretch]:
        """End the window; return one stretch for each mark, in order of time."""
        atexit.unregister(self._stop_at_exit)
        self._leave()
        with without_kineto_lines():
            events = profiler.stop_allocator_events()
        number = {mark.data_ptr(): index for index, mark in enumerate(self._marks)}
        found = _stretches(_events(events, self._device), number, self._names)
        self._marks.clear()
        return found

    def _stop_at_exit(self) -> None:
        """Stop, because torch crashes a process that ends while its profiler runs."""
        if threading.get_ident() == self._thread:
            self.stop()


@dataclass
class Stretch:
    """The time from one mark to the next.

    Attributes:
        name: name of the mark at its beginning.
        start_bytes: bytes that were allocated since the window began and are live at the mark.
        peak_bytes: the maximum of these live bytes up to the next mark.
    """

    name: str
    start_bytes: int
    peak_bytes: int


def can_measure() -> bool:
    """Return True if the allocator's events are free in this thread: neither a profiler nor memwatch uses them."""
    return profiler.EVENTS_WORK and not profiler.is_running() and not profiler.is_watched()


def _stretches(events: list[tuple[int, int, int]], mark: dict[int, int], names: list[str]) -> list[Stretch]:
    """Return the stretches between marks, given the number of the mark at each address."""
    # a mark lives until the stop, so it is the last allocation at its address
    last = {
        address: index for index, (_, address, nbytes) in enumerate(events) if nbytes > 0 and address in mark
    }
    open_bytes: dict[int, int] = {}
    level = 0
    found: list[Stretch] = []
    for index, (_, address, nbytes) in enumerate(events):
        level -= open_bytes.pop(address, 0)
        if nbytes > 0 and last.get(address) == index:
            found.append(Stretch(names[mark[address]], level, level))
        elif nbytes > 0:
            open_bytes[address] = nbytes
            level += nbytes
            if found:
                found[-1].peak_bytes = max(found[-1].peak_bytes, level)
    return found


def _events(roots: list[Value], device: str) -> list[tuple[int, int, int]]:
    """Return (time, address, signed bytes) of every allocation and free on the device, in order of time."""
    wanted = torch.device(device)
    found = []
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if profiler.is_allocation(node) and node.extra_fields.device.type == wanted.type:
            fields = node.extra_fields
            if wanted.index is None or wanted.type == "cpu" or fields.device.index == wanted.index:
                found.append((node.start_time_ns, fields.ptr, fields.alloc_size))
    found.sort(key=lambda event: event[0])
    return found


def _peak(events: list[tuple[int, int, int]]) -> int:
    """Return the most bytes live at once; the free of a block allocated before the measurement is ignored."""
    open_bytes: dict[int, int] = {}
    level = peak = 0
    for _, address, nbytes in events:
        level -= open_bytes.pop(address, 0)
        if nbytes > 0:
            open_bytes[address] = nbytes
            level += nbytes
            peak = max(peak, level)
    return peak


@contextlib.contextmanager
def record_allocator_events(device: str) -> Iterator[list[tuple[int, int, int]]]:
    """Yield a list. At the end of the block it is filled with (time, address, signed bytes) of a device's events.

    Raises:
        MemwatchError: a profiler is running already, or this torch reports no allocator events.
    """
    if profiler.is_running():
        raise MemwatchError("a profiler is running, so the peak cannot be measured; leave its block first")
    found: list[tuple[int, int, int]] = []
    with without_kineto_lines():
        leave_scope = profiler.start_allocator_events(of_accelerators=not is_host(device))
    try:
        yield found
    finally:
        leave_scope()
        with without_kineto_lines():
            roots = profiler.stop_allocator_events()
    found += _events(roots, device)
