"""The allocator's own account of a function, read from torch's profiler by code that shares nothing with memwatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def allocator_events(function: Callable[[], Any]) -> list[tuple[int, int]]:
    """Run a function once; give (address, bytes) of every event in order, negative for frees of known blocks."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    events = events_in(profiler)
    del result
    return events


def events_in(profiler: profile) -> list[tuple[int, int]]:
    """Return (address, bytes) of every event that a profiler saw, negative for frees of known blocks."""
    found = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if node.tag == _EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    found.sort(key=lambda event: event[0])
    live: dict[int, int] = {}
    events = []
    for _, address, nbytes in found:
        if nbytes > 0:
            live[address] = nbytes
            events.append((address, nbytes))
        elif address in live:
            events.append((address, -live.pop(address)))
    return events


def peak_increase_bytes(events: list[tuple[int, int]]) -> int:
    """Return the most bytes that were live at one instant."""
    live = peak = 0
    for _, nbytes in events:
        live += nbytes
        peak = max(peak, live)
    return peak


def seeded(make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Build the program anew with the same seed. Its model and data existed before the block."""
    torch.manual_seed(0)
    program = make()
    torch.manual_seed(1)
    return program
