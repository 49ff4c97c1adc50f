"""How many bytes are in use on each device; a hint, never a verdict."""

from __future__ import annotations

from memwatch.devices import adapter_of, devices_in_use


def memory_in_use() -> dict[str, int]:
    """Return the bytes that the allocator of each device has handed out; 0 where nobody counts."""
    return {name: adapter_of(name).allocated_bytes(name) for name in devices_in_use()}


def most_growth_bytes(before: dict[str, int], after: dict[str, int]) -> int:
    """Return by how much the device grew most that grew most; devices are not added up."""
    return max(nbytes - before.get(name, 0) for name, nbytes in after.items())
