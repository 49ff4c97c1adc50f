"""torch's CUDA caching allocator without a GPU: which bytes of a device it reserves for a trace of allocations.

`torchs_own` runs the allocator of a CUDA build of torch on a stand-in driver (`src/`). `model` is a model in Python for
a torch without it. `choose_allocator` returns the first that works here.
"""

from __future__ import annotations

from memwatch.devices.cuda_allocator.model import Model
from memwatch.devices.cuda_allocator.torchs_own import (
    Allocator,
    TorchAllocator,
    choose_allocator,
    find_torchs_own,
)
from memwatch.devices.cuda_allocator.trace import ANY_DEVICE_BYTES, FREE, Outcome, SettingsError, Trace

__all__ = [
    "ANY_DEVICE_BYTES",
    "FREE",
    "Allocator",
    "Model",
    "Outcome",
    "SettingsError",
    "TorchAllocator",
    "Trace",
    "choose_allocator",
    "find_torchs_own",
]
