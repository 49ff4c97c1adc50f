"""Split the used memory of each device into parts.

This memory is not in the RSS of the process. The used memory of a device belongs to all processes that use the device.
torch's allocator counts the part of this process, and the rest is "outside torch".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memwatch.signal_handlers import pass_on
from memwatch.words.processes import (
    HOW_DEVICE_CACHE,
    HOW_DEVICE_ELSEWHERE,
    HOW_DEVICE_OUTSIDE,
    HOW_DEVICE_TENSORS,
    UNREAD_DEVICE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.devices import Adapter

TENSORS_ON_DEVICE: Final = "tensors"
CACHE: Final = "cache"
ELSEWHERE: Final = "reserved elsewhere"
OUTSIDE: Final = "outside torch"
HOW: Final = {
    TENSORS_ON_DEVICE: HOW_DEVICE_TENSORS,
    CACHE: HOW_DEVICE_CACHE,
    ELSEWHERE: HOW_DEVICE_ELSEWHERE,
    OUTSIDE: HOW_DEVICE_OUTSIDE,
}
"""The rows of a device, each with the source of its figure."""
_MOST_TRIES: Final = 3
"""The most readings of the used memory. A reading is repeated if the allocator reserved memory meanwhile. A guess: a
program reserves memory a few thousand times in its life, and a reading takes less than a millisecond."""
_ALLOCATED: Final = "allocated_bytes.all.current"
_RESERVED: Final = "reserved_bytes.all.current"
_EVER_RESERVED: Final = ("reserved_bytes.all.allocated", "reserved_bytes.all.freed")


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, in bytes.

    Attributes:
        device: its name, such as `cuda:0`.
        used_bytes: the memory in use, by all processes together.
        capacity_bytes: all of its memory.
        rows: parts that sum to `used_bytes`.
    """

    device: str
    used_bytes: int
    capacity_bytes: int
    rows: Mapping[str, int]

    @property
    def torch_bytes(self) -> int:
        """The part that torch's allocator of this process has taken."""
        return self.used_bytes - self.rows[OUTSIDE]


def name_of_row(device: str, row: str) -> str:
    """Return the name of a device's row among the rows of the process: `cuda:0 cache`."""
    return f"{device} {row}"


def device_memory(notes: list[str]) -> list[DeviceMemory]:
    """Return the memory of the devices on which torch's allocator has taken memory in this process.

    A device without such memory is left out, because reading its use can start it: CUDA then takes hundreds of MiB for
    its context. A fork of a process that uses CUDA must not call CUDA. torch shows no device in use there, so memwatch
    reads none.

    Args:
        notes: sentences about devices that could not be read are appended.
    """
    if "torch" not in sys.modules:
        return []
    from memwatch.devices import adapter_of, devices_in_use

    found = []
    for device in devices_in_use():
        try:
            memory = _memory_of(device, adapter_of(device))
        except Exception as error:  # the device has failed, or its allocator shows no figures
            pass_on(error)
            notes.append(UNREAD_DEVICE.format(device=device, error=f"{type(error).__name__}: {error}"))
            continue
        if memory is not None:
            found.append(memory)
    return found


def _memory_of(device: str, adapter: Adapter) -> DeviceMemory | None:
    figures = adapter.statistics(device)
    if not any(figures.get(key) for key in (_RESERVED, *_EVER_RESERVED)):
        return None
    use = adapter.use(device)
    for _ in range(_MOST_TRIES):
        before_bytes, figures = figures[_RESERVED], adapter.statistics(device)
        if figures[_RESERVED] == before_bytes:
            break
        use = adapter.use(device)
    if use is None:
        return None
    allocated_bytes, reserved_bytes = figures[_ALLOCATED], figures[_RESERVED]
    free_bytes = max(reserved_bytes - allocated_bytes, 0)
    elsewhere_bytes = min(_free_in_private_pools(device, adapter, figures), free_bytes)
    # A pool with an allocator of its own can have memory that the device does not count.
    used_bytes = max(use.used_bytes, allocated_bytes + free_bytes)
    rows = {
        TENSORS_ON_DEVICE: allocated_bytes,
        CACHE: free_bytes - elsewhere_bytes,
        ELSEWHERE: elsewhere_bytes,
        OUTSIDE: used_bytes - allocated_bytes - free_bytes,
    }
    return DeviceMemory(device, used_bytes, use.capacity_bytes, rows)


_private_pools: Final[dict[str, tuple[tuple[int, ...], frozenset[tuple[int, int]]]]] = {}
"""By device: the bytes that its allocator had taken and returned so far, and the private pools at that time.

torch lists the pools only with all their blocks. With 10,000 blocks on the simulated device, the list takes 44 ms, and
a reading without it 0.5 ms. A pool can only begin when the allocator takes memory, so the list is read again only then.
"""


def _free_in_private_pools(device: str, adapter: Adapter, figures: Mapping[str, int]) -> int:
    """Return the free bytes in private pools, for example in the pool of a CUDA graph."""
    from memwatch.devices.adapters import DEFAULT_POOL, pool_of, reserved_in

    state = (figures[_RESERVED], *(figures.get(key, 0) for key in _EVER_RESERVED))
    former, pools = _private_pools.get(device, ((), frozenset()))
    if state != former:
        pools = frozenset(map(pool_of, adapter.segments(device))) - {DEFAULT_POOL}
        _private_pools[device] = state, pools
    segments = [segment for pool in pools for segment in adapter.segments(device, pool)]
    held = reserved_in(segments)
    return held.reserved_bytes - held.allocated_bytes
