"""Names of devices with a special meaning in memwatch. All other names are torch's."""

from __future__ import annotations

from typing import Final

CPU: Final = "cpu"
META: Final = "meta"
"""The device of tensors that never have memory: they count on no device."""
PINNED: Final = "pinned"
"""Pinned host memory in a snapshot of torch's. It is memory of the host, but an allocator keeps it as on a device."""


def is_host(name: str) -> bool:
    """Return True for the host."""
    return name == CPU


def kind_of(name: str) -> str:
    """Return the kind of a device: `cuda` of `cuda:0`."""
    return name.partition(":")[0]
