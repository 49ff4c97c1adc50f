"""Kernel: from what the steps do to each buffer to the intervals in which it is allocated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray

# kinds of event
MAKE, RELOAD, READ, WRITE, OFFLOAD = 0, 1, 2, 3, 4
# faults: the buffer is not there, holds another version than wanted, or lacks its last version at the end
OK, ABSENT, STALE, LOST = 0, 1, 2, 3


class Events(NamedTuple):
    """What the steps do to the buffers, sorted by buffer, then by step; in a step reads come before writes."""

    indptr: IntArray
    step: IntArray
    kind: IntArray
    version: IntArray  # read: the version read; write: the version after it
    external: IntArray  # 1: the buffer is there before the first step
    final: IntArray  # version that must be there at the end, -1: none
    num_steps: int


class Intervals(NamedTuple):
    """Allocations: a buffer, its first step (-1: live at the start), its last (num_steps: live at the end)."""

    buffer: IntArray
    first: IntArray
    last: IntArray


def wanted_versions(events: Events, buffer: int) -> IntArray:
    """Return the version that each event, or the first use after it, expects; -1 where there is no use."""
    begin, end = events.indptr[buffer], events.indptr[buffer + 1]
    wanted = np.full(end - begin + 1, events.final[buffer], np.int64)
    for slot in range(end - begin - 1, -1, -1):
        if events.kind[begin + slot] == READ:
            wanted[slot] = events.version[begin + slot]
        elif events.kind[begin + slot] == WRITE:
            wanted[slot] = events.version[begin + slot] - 1
        else:
            wanted[slot] = wanted[slot + 1]
    return wanted


def walk(events: Events, buffer: int, out: Intervals, count: int) -> tuple[int, int, int]:
    """Append the allocations of one buffer to `out`; return (status, step, count).

    A make or a reload starts a new allocation when the next use expects the version that it brings. If it
    does not, the result is dropped at once and the old allocation lives on.
    """
    wanted = wanted_versions(events, buffer)
    on_host = -1
    current = 0 if events.external[buffer] else -1
    out.buffer[count], out.first[count], out.last[count] = buffer, -1, -1
    for event in range(events.indptr[buffer], events.indptr[buffer + 1]):
        slot = event - events.indptr[buffer]
        now, kind = events.step[event], events.kind[event]
        if kind in (MAKE, RELOAD):
            brought = 0 if kind == MAKE else on_host
            if brought < 0:
                return ABSENT, now, count
            if (
                current >= 0 and wanted[slot + 1] != brought
            ):  # dropped: listed before the old allocation, which is open still
                out.buffer[count + 1], out.first[count + 1] = buffer, out.first[count]
                out.last[count + 1] = out.last[count]
                out.first[count], out.last[count] = now, now
                count += 1
                continue
            count += current >= 0
            out.buffer[count], out.first[count], out.last[count] = buffer, now, now
            current = brought
            continue
        if current < 0:
            return ABSENT, now, count
        if kind == OFFLOAD:
            on_host = current
        elif current != wanted[slot]:
            return STALE, now, count
        if kind == WRITE:
            current = events.version[event]
        out.last[count] = now
    if events.final[buffer] >= 0:
        if current != events.final[buffer]:
            return LOST, events.num_steps, count
        out.last[count] = events.num_steps
    return OK, -1, count + (current >= 0)


@with_twin(partial(calls.intervals, Intervals))
def intervals(events: Events) -> tuple[Intervals, int, int, int]:
    """Return the allocations of all buffers.

    Returns:
        The allocations; then (status, step, buffer) of the first fault, status OK when there is none.
    """
    num_buffers = len(events.indptr) - 1
    capacity = len(events.step) + num_buffers + 2
    out = Intervals(np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64))
    count = 0
    for buffer in range(num_buffers):
        status, step, count = walk(events, buffer, out, count)
        if status != OK:
            return out, status, step, buffer
    return Intervals(out.buffer[:count], out.first[:count], out.last[:count]), OK, -1, -1
