"""Kernel: one backward pass over a schedule says whether it is valid and what it keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._numba import compiled

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model


class Scratch(NamedTuple):
    """Working memory of a sweep, one entry per buffer."""

    wanted: IntArray  # version that the steps seen so far want to find, -1: none
    until: IntArray  # last step of the allocation that is open
    host: IntArray  # version that later reloads want to find moved out, -1: none


@compiled
def new_scratch(num_buffers: int) -> Scratch:
    """Allocate the working memory of a sweep."""
    return Scratch(
        np.empty(num_buffers, np.int64), np.empty(num_buffers, np.int64), np.empty(num_buffers, np.int64)
    )


@compiled
def compute_backwards(model: Model, op: int, step: int, scratch: Scratch, live: IntArray) -> bool:
    """Undo one compute step: its outputs are born here, its inputs are wanted from here on."""
    wanted, until = scratch.wanted, scratch.until
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
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
        else:  # nobody wants it, or not in this version: dropped at once
            live[step + 1] -= model.nbytes[buffer]
    return True


@compiled
def move_backwards(model: Model, token: int, step: int, scratch: Scratch, live: IntArray) -> bool:
    """Undo one offload or reload step."""
    wanted, until, host = scratch.wanted, scratch.until, scratch.host
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


@compiled
def rewind(model: Model, tokens: IntArray, length: int, first: int, scratch: Scratch, live: IntArray) -> bool:
    """Undo the steps from the end back to `first`; `live` then holds changes, not levels."""
    scratch.wanted[:] = model.final
    scratch.until[:] = length
    scratch.host[:] = -1
    live[: length + 2] = 0
    for step in range(length - 1, first - 1, -1):
        token = tokens[step]
        if token < model.num_ops:
            if not compute_backwards(model, token, step, scratch, live):
                return False
        elif not move_backwards(model, token, step, scratch, live):
            return False
    return True


@compiled
def sweep(model: Model, tokens: IntArray, length: int, scratch: Scratch, live: IntArray) -> int:
    """Fill `live` with the bytes alive during every step.

    Returns:
        The peak (bytes), or -1 when the schedule does not compute what the program computes.
    """
    if not rewind(model, tokens, length, 0, scratch, live):
        return -1
    level = model.always
    for buffer in range(model.num_buffers):
        if scratch.host[buffer] != -1:
            return -1
        version = scratch.wanted[buffer]
        if version == -1:
            continue
        if version != 0 or model.external[buffer] == 0:
            return -1
        level += model.nbytes[buffer]
        live[scratch.until[buffer] + 1] -= model.nbytes[buffer]
    peak = level
    for step in range(length):
        level += live[step]
        live[step] = level
        if tokens[step] < model.num_ops:
            live[step] += model.workspace[tokens[step]]
        peak = max(peak, live[step])
    return peak


@compiled
def overflow(model: Model, tokens: IntArray, length: int, live: IntArray, budget: int) -> float:
    """Return the bytes above the budget, summed over the steps; 0 exactly when the schedule fits.

    A repeated op counts by what it adds to the step it serves: otherwise a cut far above the budget
    would look bad only because its op runs where everything is far above the budget.
    """
    first = np.full(model.num_ops, -1, np.int64)
    for step in range(length - 1, -1, -1):
        if tokens[step] < model.num_ops:
            first[tokens[step]] = step
    total, served = 0.0, 0.0
    for step in range(length - 1, -1, -1):
        above = max(live[step] - budget, 0)
        if tokens[step] < model.num_ops and first[tokens[step]] == step:
            total += above
            served = above
        else:
            total += max(above - served, 0.0)
    return total
