"""Measure the peak of a stretch of code from the allocator's own events, independently of the recorder.

torch's kineto profiler reports every allocation and free of c10's allocators in the thread that started it, with
address and signed bytes. It records no ops here, so measuring costs little.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import fx

from memwatch._torch import profiler
from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch._torch.profiler import without_kineto_lines
from memwatch._torch.tensors import address_of
from memwatch.device_names import is_host
from memwatch.encoding import ONLY_ALLOCATE, Value, leaves
from memwatch.errors import MemwatchError
from memwatch.replay.executor import below_autograd
from memwatch.replay.traced_ops import kernel_of
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Arguments = tuple[list[Value], dict[str, Value]]


class AllocatorEvent(NamedTuple):
    """An allocation or a free of a device's allocator. The bytes of a free are negative."""

    time_ns: int
    address: int
    nbytes: int


@dataclass
class Measured:
    """The result of `measure_peak`: the most bytes that were allocated in the block and live at once."""

    peak_increase_bytes: int = 0


@contextlib.contextmanager
def measure_peak(device: str) -> Iterator[Measured]:
    """Yield the result of measuring the block on a device (`cpu`, `cuda:0`); it is filled in at the end.

    Raises:
        MemwatchError: a profiler is running already, or this torch reports no allocator events.
    """
    measured = Measured()
    with record_allocator_events(device) as events:
        yield measured
    measured.peak_increase_bytes = _peak(events)


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
    """Return True if a window can start in this thread: neither a profiler nor memwatch uses the allocator's events."""
    return profiler.EVENTS_WORK and not profiler.is_running() and not profiler.is_watched()


def _stretches(events: list[AllocatorEvent], mark: dict[int, int], names: list[str]) -> list[Stretch]:
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


def _events(roots: list[Value], device: str) -> list[AllocatorEvent]:
    """Return every allocation and free on the device, in order of time."""
    wanted = torch.device(device)
    found = []
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if profiler.is_allocation(node) and node.extra_fields.device.type == wanted.type:
            fields = node.extra_fields
            if wanted.index is None or wanted.type == "cpu" or fields.device.index == wanted.index:
                found.append(AllocatorEvent(node.start_time_ns, fields.ptr, fields.alloc_size))
    found.sort(key=lambda event: event.time_ns)
    return found


def _peak(events: list[AllocatorEvent]) -> int:
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
def record_allocator_events(device: str) -> Iterator[list[AllocatorEvent]]:
    """Yield a list. At the end of the block it is filled with the events of a device.

    Raises:
        MemwatchError: a profiler is running already, or this torch reports no allocator events.
    """
    if profiler.is_running():
        raise MemwatchError("a profiler is running, so the peak cannot be measured; leave its block first")
    found: list[AllocatorEvent] = []
    with without_kineto_lines():
        leave_scope = profiler.start_allocator_events(of_accelerators=not is_host(device))
    try:
        yield found
    finally:
        leave_scope()
        with without_kineto_lines():
            roots = profiler.stop_allocator_events()
    found += _events(roots, device)


# The workspace of an op is the memory that the op holds while it runs, besides its results.
#
# `measure_workspaces` runs each op alone, on given arguments. `Workspaces` runs the nodes of an FX graph, once for each
# op and shape, on tensors of zeros. Afterwards the random generators get their old state. Ops that act on the world
# outside do not run, and some ops refuse zeros. They count as ops without workspace, until a measured step corrects it.
_measured_bytes: Final[dict[str, int]] = {}
_SKIPPED: Final = ONLY_ALLOCATE | {"_local_scalar_dense", "set_", "resize_"}


class Workspaces:
    """The workspaces of the nodes of a graph, for given values of the symbolic sizes.

    Args:
        size_of: returns a size, perhaps symbolic, as a number.
        device: device whose bytes count.
    """

    def __init__(self, size_of: Callable[[Value], int], device: str) -> None:
        self._size_of = size_of
        self._device = device

    def __call__(self, node: fx.Node) -> int:
        """Return the workspace of a node (bytes); 0 where it was not measured."""
        return _measured_bytes.get(self._key(node), 0)

    def measure(self, nodes: Iterable[fx.Node]) -> None:
        """Measure the nodes among these that were never measured."""
        new = {self._key(node): node for node in nodes if _is_measurable(node)}
        new = {key: node for key, node in new.items() if key not in _measured_bytes}
        if not new or not can_measure():
            return
        calls = {
            key: (kernel_of(node), functools.partial(self._arguments, node)) for key, node in new.items()
        }
        found = measure_workspaces(calls, self._device)
        _measured_bytes.update((key, found.get(key, 0)) for key in new)

    def _arguments(self, node: fx.Node) -> Arguments:
        return self._map_tensors(node.args, _zeros), self._map_tensors(dict(node.kwargs), _zeros)

    def _key(self, node: fx.Node) -> str:
        args, kwargs = (self._map_tensors(each, _layout) for each in (node.args, dict(node.kwargs)))
        return f"{node.target} {args} {kwargs}"

    def _map_tensors(
        self, value: Value, of_tensor: Callable[[torch.Tensor, list[int], list[int]], Value]
    ) -> Value:
        """Return arguments of a node with numbers for symbolic sizes, and a result of `of_tensor` for each tensor."""
        if isinstance(value, fx.Node):
            return self._map_tensors(value.meta.get("val"), of_tensor)
        if isinstance(value, dict):
            return {name: self._map_tensors(item, of_tensor) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._map_tensors(item, of_tensor) for item in value]
        if isinstance(value, torch.SymInt):
            return self._size_of(value)
        if isinstance(value, torch.Tensor):
            size, stride = ([self._size_of(item) for item in part] for part in (value.shape, value.stride()))
            return of_tensor(value, size, stride)
        return value


def _zeros(like: torch.Tensor, size: list[int], stride: list[int]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=like.dtype, device=like.device).zero_()


def _layout(like: torch.Tensor, size: list[int], stride: list[int]) -> Value:
    return size, stride, like.dtype, str(like.device)


def _is_measurable(node: fx.Node) -> bool:
    overload = node.target
    return (
        isinstance(overload, OpOverload)
        and overload.namespace in {"aten", "prims"}
        and base_name_of(overload) not in _SKIPPED
        and any(True for _ in tensors_in(node.meta.get("val")))
        and not overload.is_view
    )


def measure_workspaces(
    calls: Mapping[str, tuple[Any, Callable[[], Arguments]]], device: str
) -> dict[str, int]:
    """Return the workspace of each call (bytes), by its key. Calls that raise are left out.

    Args:
        calls: key -> an op, and a function that makes its arguments.
        device: device whose bytes count.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        window = AllocatorWindow(device)
        try:
            with below_autograd():
                made = {key: _run_call(key, op, make, window) for key, (op, make) in calls.items()}
        finally:
            stretches = window.stop()
    measured = {}
    for stretch in stretches:
        beyond = made.get(stretch.name)
        if beyond is not None:
            measured[stretch.name] = _workspace_bytes(stretch, beyond)
    return measured


def _run_call(key: str, op: Any, make: Callable[[], Arguments], window: AllocatorWindow) -> int | None:
    """Run a call between two marks; return the bytes of its new storages, or None if it raised an error."""
    made = None
    with suppress(Exception):
        positional, keyword = make()
        window.mark(key)
        made = _made_bytes(op(*positional, **keyword), [positional, list(keyword.values())])
    window.mark("")
    return made


def _made_bytes(result: Value, given: Value) -> int:
    known = {address_of(item.untyped_storage()) for item in tensors_in(given)}
    storages = {
        address_of(item.untyped_storage()): item.untyped_storage().nbytes() for item in tensors_in(result)
    }
    return sum(nbytes for address, nbytes in storages.items() if address not in known)


def _workspace_bytes(stretch: Stretch, made_bytes: int) -> int:
    return max(stretch.peak_bytes - stretch.start_bytes - made_bytes, 0)


def tensors_in(value: Value) -> Iterable[torch.Tensor]:
    """Return the tensors of an argument or a result."""
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))
