"""Kernels: a schedule that is changed in place, the uses of its buffers, and the bytes that it keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model


class Draft(NamedTuple):
    """A schedule: the first ``size[0]`` tokens. The rest of the arrays is room to grow."""

    tokens: IntArray
    ids: IntArray  # number of every step; it stays while other steps come and go
    size: IntArray


def new_draft(room: int) -> Draft:
    """Return an empty schedule with room for so many steps."""
    return Draft(np.empty(room, np.int64), np.empty(room, np.int64), np.zeros(1, np.int64))


def load_tokens(draft: Draft, tokens: IntArray) -> None:
    """Replace the schedule by these tokens and number its steps."""
    draft.size[0] = len(tokens)
    draft.tokens[: len(tokens)] = tokens
    draft.ids[: len(tokens)] = np.arange(len(tokens))


def copy_draft(source: Draft, target: Draft) -> None:
    """Make the target equal to the source."""
    size = source.size[0]
    target.size[0] = size
    target.tokens[:size] = source.tokens[:size]
    target.ids[:size] = source.ids[:size]


def insert_tokens(draft: Draft, at: int, tokens: IntArray) -> None:
    """Insert tokens before a step."""
    size, count = draft.size[0], len(tokens)
    for position in range(size - 1, at - 1, -1):
        draft.tokens[position + count] = draft.tokens[position]
        draft.ids[position + count] = draft.ids[position]
    draft.tokens[at : at + count] = tokens
    draft.ids[at : at + count] = -1
    draft.size[0] = size + count


def remove_steps(draft: Draft, first: int, second: int) -> None:
    """Remove one step, or two (`second` is -1 for one)."""
    at = 0
    for position in range(draft.size[0]):
        if position not in (first, second):
            draft.tokens[at] = draft.tokens[position]
            draft.ids[at] = draft.ids[position]
            at += 1
    draft.size[0] = at


class Events(NamedTuple):
    """Events of all buffers. The events of buffer b are the entries from ``ptr[b]`` to ``ptr[b + 1]``.

    They are in step order, and reads come before writes of the same step.
    """

    ptr: IntArray
    step: IntArray
    needs: IntArray  # version that the event needs, -1: it brings one itself
    leaves: IntArray  # version that is there after it


def _count_events(model: Model, draft: Draft) -> IntArray:
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


def _put_event(events: Events, slot: int, step: int, versions: tuple[int, int]) -> None:
    events.step[slot] = step
    events.needs[slot], events.leaves[slot] = versions


def list_events(model: Model, draft: Draft) -> Events:
    """Return the events of every buffer in a valid schedule."""
    ptr = _count_events(model, draft)
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
                _put_event(events, at[buffer], step, (on_host[buffer], on_host[buffer]))
                at[buffer] += 1
            else:
                _put_event(events, at[buffer], step, (-1, on_host[buffer]))
                at[buffer] += 1
            continue
        for entry in range(model.read_ptr[token], model.read_ptr[token + 1]):
            version = model.read_version[entry]
            _put_event(events, at[model.read[entry]], step, (version, version))
            at[model.read[entry]] += 1
        for entry in range(model.write_ptr[token], model.write_ptr[token + 1]):
            if seen[token] and model.once[entry]:
                continue
            version = model.write_version[entry]
            _put_event(events, at[model.write[entry]], step, (version - 1, version))
            at[model.write[entry]] += 1
        for entry in range(model.make_ptr[token], model.make_ptr[token + 1]):
            _put_event(events, at[model.make[entry]], step, (-1, 0))
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


class Work(NamedTuple):
    """Working memory of a sweep."""

    wanted: IntArray  # buffer -> version that the steps after this point want, -1: none
    until: IntArray  # buffer -> last step of the allocation that is open
    host: IntArray  # buffer -> version that reloads after this point want outside, -1: none
    live: IntArray  # step -> bytes alive while it runs
    first: IntArray  # op -> step that computes it first
    left: IntArray  # op -> its computations up to this point; counted where ops write something once


def new_work(model: Model, room: int) -> Work:
    """Return working memory for schedules of up to `room` steps."""
    return Work(
        np.empty(model.num_buffers, np.int64),
        np.empty(model.num_buffers, np.int64),
        np.empty(model.num_buffers, np.int64),
        np.empty(room + 2, np.int64),
        np.empty(model.num_ops, np.int64),
        np.empty(model.num_ops, np.int64),
    )


def compute_backwards(model: Model, op: int, step: int, work: Work) -> bool:
    """Go back over a compute step: its outputs are born here, its inputs are wanted before. False: not valid."""
    wanted = work.wanted
    until = work.until
    live = work.live
    work.left[op] -= model.has_once
    repeats = model.has_once and work.left[op] > 0
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
        if repeats and model.once[entry]:
            continue
        buffer, version = model.write[entry], model.write_version[entry]
        if wanted[buffer] == -1:
            until[buffer] = step
        elif wanted[buffer] != version:
            return False
        wanted[buffer] = version - 1
    for entry in range(model.read_ptr[op], model.read_ptr[op + 1]):
        buffer, version = model.read[entry], model.read_version[entry]
        if wanted[buffer] == -1:
            until[buffer] = step
            wanted[buffer] = version
        elif wanted[buffer] != version:
            return False
    for entry in range(model.make_ptr[op], model.make_ptr[op + 1]):
        buffer = model.make[entry]
        live[step] += model.nbytes[buffer]
        if wanted[buffer] == 0:
            live[until[buffer] + 1] -= model.nbytes[buffer]
            wanted[buffer] = -1
        else:  # no later step wants this version: dropped at once
            live[step + 1] -= model.nbytes[buffer]
    return True


def move_backwards(model: Model, token: int, step: int, work: Work) -> bool:
    """Go back over an offload or a reload; False if it is not valid."""
    wanted = work.wanted
    until = work.until
    host = work.host
    live = work.live
    buffer = token - model.num_ops
    if buffer >= model.num_buffers:  # reload
        buffer -= model.num_buffers
        if wanted[buffer] == -1 or (host[buffer] != -1 and host[buffer] != wanted[buffer]):
            return False
        live[step] += model.nbytes[buffer]
        live[until[buffer] + 1] -= model.nbytes[buffer]
        host[buffer] = wanted[buffer]
        wanted[buffer] = -1
        return True
    if host[buffer] == -1:
        return False
    if wanted[buffer] == -1:
        until[buffer] = step
        wanted[buffer] = host[buffer]
    elif wanted[buffer] != host[buffer]:
        return False
    host[buffer] = -1
    return True


def begin_sweep(model: Model, draft: Draft, work: Work) -> None:
    """Start after the last step, where only the results of the program are wanted."""
    work.wanted[:] = model.final
    work.until[:] = draft.size[0]
    work.host[:] = -1
    work.live[: draft.size[0] + 2] = 0
    if model.has_once:
        tokens = draft.tokens[: draft.size[0]]
        work.left[:] = np.bincount(tokens[tokens < model.num_ops], minlength=model.num_ops)


def _sweep_steps(model: Model, draft: Draft, work: Work) -> bool:
    """Go back over all steps; `live` then holds changes from step to step, not sums."""
    begin_sweep(model, draft, work)
    for step in range(draft.size[0] - 1, -1, -1):
        token = draft.tokens[step]
        if token < model.num_ops:
            if not compute_backwards(model, token, step, work):
                return False
        elif not move_backwards(model, token, step, work):
            return False
    return True


@with_twin(calls.sweep)
def sweep(model: Model, draft: Draft, work: Work) -> int:
    """Write the bytes alive during every step to ``work.live``; return the peak (bytes).

    Returns:
        The peak (bytes); -1 if the schedule does not compute the same as the program.
    """
    if not _sweep_steps(model, draft, work):
        return -1
    level, live = model.always, work.live
    for buffer in range(model.num_buffers):
        if work.host[buffer] != -1:
            return -1
        version = work.wanted[buffer]
        if version == -1:
            continue
        if version != 0 or model.external[buffer] == 0:
            return -1
        level += model.nbytes[buffer]
        live[work.until[buffer] + 1] -= model.nbytes[buffer]
    peak = level
    for step in range(draft.size[0]):
        level += live[step]
        live[step] = level
        if draft.tokens[step] < model.num_ops:
            live[step] += model.workspace[draft.tokens[step]]
        peak = max(peak, live[step])
    return peak


def overflow(model: Model, draft: Draft, work: Work, budget: int) -> float:
    """Return the bytes above the budget after a sweep, summed over the steps; 0 exactly when it fits.

    A repeated op counts only with the bytes that it adds to the step of its user. All steps near it may be far above
    the budget. If a repeated op counted in full, every cut there would look bad.
    """
    tokens = draft.tokens
    for step in range(draft.size[0] - 1, -1, -1):
        if tokens[step] < model.num_ops:
            work.first[tokens[step]] = step
    total, served = 0.0, 0.0
    for step in range(draft.size[0] - 1, -1, -1):
        above = max(work.live[step] - budget, 0)
        if tokens[step] < model.num_ops and work.first[tokens[step]] == step:
            total += above
            served = above
        else:
            total += max(above - served, 0.0)
    return total
