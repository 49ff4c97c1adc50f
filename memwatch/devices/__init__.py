"""Devices and their allocators: one adapter for each kind, so that no other file names a kind of accelerator.

An adapter calls torch's module of a device only after the program has used the device, so that it never starts one.
"""

from __future__ import annotations

from memwatch.devices.adapters import (
    NOTE_KIND,
    Adapter,
    Failure,
    adapter_of,
    asked_bytes,
    devices_in_use,
    is_of_host,
    is_of_numpy,
    is_out_of_memory,
)

__all__ = [
    "NOTE_KIND",
    "Adapter",
    "Failure",
    "adapter_of",
    "asked_bytes",
    "devices_in_use",
    "is_of_host",
    "is_of_numpy",
    "is_out_of_memory",
]
