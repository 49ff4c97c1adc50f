"""Count the live bytes of a device in a block of code: the bytes before it, and every allocation and free in it."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch import profiler
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.profiler import log_level_flag
from memwatch.device_names import CPU, is_host
from memwatch.devices import adapter_of
from memwatch.errors import MemwatchError
from memwatch.heap.classes import derives, of_classes
from memwatch.heap.tensors import is_simulated, quiet, storage_bytes, storage_of
from memwatch.replay.measure import AllocatorEvent, record_allocator_events
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_ERRORS_ONLY: Final = 2  # c10's log level


def device_of(model: nn.Module) -> str:
    """Return the device of a model's first parameter, by its full name.

    Raises:
        MemwatchError: it has none.
    """
    devices = [parameter.device for parameter in model.parameters()]
    if not devices:
        raise MemwatchError("the model has no parameters; pass the model that `step` trains")
    first = devices[0]
    return str(first) if is_host(first.type) else f"{first.type}:{first.index or 0}"


@dataclass
class LiveBytes:
    """The result of `count_live_bytes`, filled in when its block ends.

    Attributes:
        baseline_bytes: bytes that were alive when the block began.
        peak_bytes: the most bytes alive at one instant of the block, the baseline included.
        marks_ns: instants in the block, in Unix time. The caller adds them.
        marked_bytes: the bytes that were alive at each of these instants.
    """

    baseline_bytes: int = 0
    peak_bytes: int = 0
    marks_ns: list[int] = field(default_factory=list)
    marked_bytes: list[int] = field(default_factory=list)


@contextlib.contextmanager
def count_live_bytes(device: str) -> Iterator[LiveBytes]:
    """Count the live bytes of a device (`cpu`, `cuda:0`) in a block, by its allocator's own events.

    No op is recorded, so the program runs as it does without memwatch. On the host, torch reports the free of a block
    only if it reported the block's allocation. So weak references watch the blocks from before.

    Raises:
        MemwatchError: a profiler is running already, or this torch reports no allocator events.
    """
    if not profiler.EVENTS_WORK:
        raise MemwatchError("this torch does not hand out the allocator's events, so no peak can be measured")
    older = _Older() if is_host(device) else None
    found = LiveBytes(older.nbytes if older is not None else adapter_of(device).allocated_bytes(device))
    found.peak_bytes = found.baseline_bytes
    with _without_log_lines(), record_allocator_events(device) as events:
        yield found
    if older is not None:
        events = older.merged_with(events)
    levels = list(accumulate((nbytes for _, _, nbytes in events), initial=found.baseline_bytes))
    found.peak_bytes = max(levels)
    times_ns = [time_ns for time_ns, _, _ in events]
    found.marked_bytes = [levels[bisect_right(times_ns, mark_ns)] for mark_ns in found.marks_ns]


def alive_bytes(device: str) -> int:
    """Return the live bytes of a device now."""
    return _Older().nbytes if is_host(device) else adapter_of(device).allocated_bytes(device)


class LivingStorages:
    """Weak references to the storages of a device that are alive when this object is made."""

    def __init__(self, device: str) -> None:
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        with quiet():
            for tensor in _living_tensors():
                if not is_simulated(tensor) and tensor.device == torch.device(device):
                    storage = storage_of(tensor)
                    if storage is not None and storage.data_ptr():
                        self._storages[storage.data_ptr()] = weakref.ref(storage), storage_bytes(storage)

    @property
    def nbytes(self) -> int:
        """The bytes of the storages that are still alive."""
        return sum(nbytes for storage, nbytes in self._storages.values() if storage() is not None)


def _living_tensors() -> Iterator[torch.Tensor]:
    for tensor in of_classes(gc.get_objects(), lambda cls: derives(cls, torch.Tensor)):
        yield tensor
        # gc did not list the gradient if it had no Python object so far
        if autograd_state(tensor).is_leaf and tensor.grad is not None:
            yield tensor.grad


@dataclass
class _Older:
    """The storages of the host that were alive before the block, by address, and the times at which they died."""

    by_address: dict[int, int] = field(default_factory=dict)
    _deaths: list[tuple[int, int]] = field(default_factory=list)
    # made early, because it only converts later times
    _clock: Any = field(default_factory=profiler.TickConverter)
    _watched: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with quiet():
            for tensor in _living_tensors():
                self._watch(tensor)

    @property
    def nbytes(self) -> int:
        """Their bytes, together."""
        return sum(self.by_address.values())

    def _watch(self, tensor: torch.Tensor) -> None:
        if is_simulated(tensor) or tensor.device.type != CPU:
            return
        storage = storage_of(tensor)
        if storage is None or not storage_bytes(storage):
            return
        address = storage.data_ptr()
        if address and address not in self.by_address:
            self.by_address[address] = storage_bytes(storage)
            self._watched.append(weakref.ref(storage, functools.partial(self._died, address)))

    @raises_later
    def _died(self, address: int, _: object) -> None:
        self._deaths.append((profiler.ticks(), address))

    def merged_with(self, events: list[AllocatorEvent]) -> list[AllocatorEvent]:
        """Return the events of the allocator with the deaths that it could not report, in order of time.

        An older block died at the latest at the first event of its address. A first event that is a free is left out,
        because its size may be wrong: torch may still have the size of an earlier block at this address.
        """
        clock = self._clock
        died = {address: clock.to_unix_ns(ticks) for ticks, address in reversed(self._deaths)}
        self._watched.clear()
        first_ns: dict[int, int] = {}  # when the allocator first reported an address
        for time_ns, address, _ in events:
            first_ns.setdefault(address, time_ns)
        freed: list[AllocatorEvent] = []
        for address, nbytes in self.by_address.items():
            times = [found[address] for found in (died, first_ns) if address in found]
            if times:
                freed.append(AllocatorEvent(min(times), address, -nbytes))
        seen: set[int] = set()
        known: list[AllocatorEvent] = []
        for event in events:
            is_of_older = event.address not in seen and event.nbytes < 0
            seen.add(event.address)
            if not is_of_older:
                known.append(event)
        return sorted([*freed, *known], key=lambda event: event.time_ns)


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Silence c10, which prints a line about the first block whose allocation it did not see."""
    flag = log_level_flag()
    if flag is None:
        yield
        return
    before, flag.value = flag.value, max(_ERRORS_ONLY, flag.value)
    try:
        yield
    finally:
        flag.value = before
