"""Kernel: the uses of every buffer in step order, in which gaps and live versions are found by bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._draft import Draft
    from memwatch.planner.recompute.model import Model


class Events(NamedTuple):
    """Events of all buffers; those of buffer b are the entries from ``ptr[b]`` to ``ptr[b + 1]``.

    They are in step order, and reads come before writes of the same step.
    """

    ptr: IntArray
    step: IntArray
    needs: IntArray  # version that the event needs, -1: it brings one itself
    leaves: IntArray  # version that is there after it


def _count(model: Model, draft: Draft) -> IntArray:
    ptr = np.zeros(model.num_buffers + 1, np.int64)
    seen = np.zeros(model.num_ops, np.bool_)
    for step in range(draft.size[0]):
        token = draft.tokens[step]
        if token >= model.num_ops:
            ptr[(token - model.num_ops) % model.num_buffers + 1] += 1
            continue
        for entry in range(model.read_ptr[token], model.read_ptr[token + 1]):
            ptr[model.read[entry] + 1] += 1
        for entry in range(model.write_ptr[token], model.write_ptr[token + 1]):
            ptr[model.write[entry] + 1] += not (seen[token] and model.once[entry])
        seen[token] = True
        for entry in range(model.make_ptr[token], model.make_ptr[token + 1]):
            ptr[model.make[entry] + 1] += 1
    return np.cumsum(ptr)


def _put(events: Events, slot: int, step: int, versions: tuple[int, int]) -> None:
    events.step[slot] = step
    events.needs[slot], events.leaves[slot] = versions


def list_events(model: Model, draft: Draft) -> Events:
    """Return the events of every buffer in a valid schedule."""
    ptr = _count(model, draft)
    total = ptr[-1]
    events = Events(ptr, np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64))
    at = ptr[:-1].copy()
    on_host = np.zeros(model.num_buffers, np.int64)
    seen = np.zeros(model.num_ops, np.bool_)
    for step in range(draft.size[0]):
        token = draft.tokens[step]
        if token >= model.num_ops:
            buffer = (token - model.num_ops) % model.num_buffers
            if token < model.num_ops + model.num_buffers:
                on_host[buffer] = events.leaves[at[buffer] - 1] if at[buffer] > ptr[buffer] else 0
                _put(events, at[buffer], step, (on_host[buffer], on_host[buffer]))
                at[buffer] += 1
            else:
                _put(events, at[buffer], step, (-1, on_host[buffer]))
                at[buffer] += 1
            continue
        for entry in range(model.read_ptr[token], model.read_ptr[token + 1]):
            version = model.read_version[entry]
            _put(events, at[model.read[entry]], step, (version, version))
            at[model.read[entry]] += 1
        for entry in range(model.write_ptr[token], model.write_ptr[token + 1]):
            if seen[token] and model.once[entry]:
                continue
            version = model.write_version[entry]
            _put(events, at[model.write[entry]], step, (version - 1, version))
            at[model.write[entry]] += 1
        for entry in range(model.make_ptr[token], model.make_ptr[token + 1]):
            _put(events, at[model.make[entry]], step, (-1, 0))
            at[model.make[entry]] += 1
        seen[token] = True
    return events


def first_at(events: Events, buffer: int, step: int) -> int:
    """Return the first event of a buffer at or after a step; ``ptr[buffer + 1]`` for none."""
    low, high = events.ptr[buffer], events.ptr[buffer + 1]
    while low < high:
        middle = (low + high) // 2
        if events.step[middle] < step:
            low = middle + 1
        else:
            high = middle
    return int(low)


def wanted_at(model: Model, events: Events, buffer: int, step: int) -> int:
    """Return the version of a buffer that is alive just before a step because it is needed later, or -1."""
    slot = first_at(events, buffer, step)
    return int(model.final[buffer] if slot == events.ptr[buffer + 1] else events.needs[slot])


def left_before(model: Model, events: Events, buffer: int, step: int) -> tuple[int, int]:
    """Return (version, step) of the last event before a step; version -1 if the buffer is not there."""
    slot = first_at(events, buffer, step) - 1
    if slot < events.ptr[buffer]:
        return (0 if model.external[buffer] else -1), -1
    return events.leaves[slot], events.step[slot]
