"""Kernel: one backward pass over a schedule tells whether it is valid and what it keeps alive.

Backwards, because a buffer is alive when a later step wants it; the pass carries the versions that are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._draft import Draft
    from memwatch.planner.recompute.model import Model


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
        np.empty(model.num_buffers, np.int64), np.empty(model.num_buffers, np.int64),
        np.empty(model.num_buffers, np.int64), np.empty(room + 2, np.int64),
        np.empty(model.num_ops, np.int64), np.empty(model.num_ops, np.int64),
    )  # fmt: skip


def compute_backwards(model: Model, op: int, step: int, work: Work) -> bool:
    """Go back over a compute step: its outputs are born here, its inputs are wanted before. False: not valid."""
    wanted, until, live = work.wanted, work.until, work.live
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
    wanted, until, host, live = work.wanted, work.until, work.host, work.live
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


def begin(model: Model, draft: Draft, work: Work) -> None:
    """Start after the last step, where only the results of the program are wanted."""
    work.wanted[:] = model.final
    work.until[:] = draft.size[0]
    work.host[:] = -1
    work.live[: draft.size[0] + 2] = 0
    if model.has_once:
        tokens = draft.tokens[: draft.size[0]]
        work.left[:] = np.bincount(tokens[tokens < model.num_ops], minlength=model.num_ops)


def _rewind(model: Model, draft: Draft, work: Work) -> bool:
    """Go back over all steps; `live` then holds changes from step to step, not sums."""
    begin(model, draft, work)
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
        The peak (bytes); -1 when the schedule does not compute what the program computes.
    """
    if not _rewind(model, draft, work):
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

    A repeated op counts only by what it adds to the step for which it runs. It runs where everything may be
    far above the budget, and counting all of that would make every cut there look bad.
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
