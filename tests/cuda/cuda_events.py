"""The events that CUDA's caching allocator itself records for a function, read by code independent of memwatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def counted(function: Callable[[], Any]) -> tuple[int, Any]:
    """Call a function; return the most bytes that were handed out above those at the start, and its result."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    return torch.cuda.max_memory_allocated() - before, result


def events_of(function: Callable[[], Any]) -> list[tuple[int, int]]:
    """Call a function; return (address, requested bytes) of the memory history, negative for blocks given back.

    A block is given back when its last reference goes; that a stream may still use it is the allocator's matter.
    """
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None, stacks="python")
    try:
        function()
        trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_requested": -1}
    return [(each["addr"], signs[each["action"]] * each["size"]) for each in trace if each["action"] in signs]
