"""A simulated accelerator: `torch.device("pretend:0")` and `"pretend:1"`, with memory from malloc.

Its caching allocator follows the rules of CUDA's. It has blocks of 512 bytes, segments of 2 and 20 MiB, frees that
wait for streams, statistics and a memory history, and it reports each allocation and free to the profiler. Kernels
run on the host. The tests compare memwatch with the counters of this allocator.

The device is loaded on first use, not on import. pytest collects the tests in processes that must not have an
accelerator.
"""

from __future__ import annotations

import importlib

_NAMES = frozenset({
    "copy_with_workspace", "give_back", "hold", "memory_snapshot", "pinned_bytes", "record_history", "reset_peaks",
    "set_limit", "set_outside", "set_pool", "snapshot", "stats", "take",
})  # fmt: skip
"""Names of the backend. `pickle` tries any name in all modules, which must not load the device."""


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(name)
    return getattr(importlib.import_module("pretend.backend"), name)
