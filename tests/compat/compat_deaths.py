"""Compare the order of allocations and frees in a plain program and in an observed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

import memwatch
from memwatch.capture.schema import NONE

_NUMBER_BYTES = 8


def plain_order(function: Callable[[], Any]) -> list[int]:
    """Run a function; list the bytes of its allocations (positive) and frees (negative) in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    del result
    events = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if node.tag == _EventType.Allocation:
            events.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    events.sort(key=lambda event: event[0])
    return _order((address, nbytes) for _, address, nbytes in events)


def observed_order(prof: memwatch.Profile) -> list[int]:
    """Return the allocations and frees of a profiled block's own thread, in the form of `plain_order`."""
    rows = prof.capture.tables["allocator"]
    own = rows["thread"] == NONE  # torch's profiler sees no other thread
    return _order(zip(rows["address"][own].tolist(), rows["nbytes"][own].tolist(), strict=True))


def _order(events: Iterable[tuple[int, int]]) -> list[int]:
    """Keep the frees of known blocks, sorted where nothing is allocated between them; leave out tiny blocks.

    ATen wraps Python numbers in blocks of 8 bytes. An interceptor of an op keeps them until it returns.
    """
    live: dict[int, int] = {}
    order: list[int] = []
    for address, nbytes in events:
        if nbytes > 0:
            live[address] = nbytes
        signed = nbytes if nbytes > 0 else -live.pop(address, 0)
        if abs(signed) > _NUMBER_BYTES:
            order.append(signed)
    return [
        nbytes
        for is_free, run in groupby(order, lambda each: each < 0)
        for nbytes in (sorted(run) if is_free else run)
    ]
