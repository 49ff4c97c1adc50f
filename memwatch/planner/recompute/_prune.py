"""Kernel: what a schedule costs, and taking back the recomputes and moves that it can do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner._numba import compiled
from memwatch.planner.recompute._sweep import compute_backwards, move_backwards, new_scratch, sweep

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._sweep import Scratch
    from memwatch.planner.recompute.model import Model


@compiled
def duration(model: Model, tokens: IntArray, length: int) -> float:
    """Return the time from the first step to the last, in the unit of the ops' costs.

    One copy engine runs beside the computing: a move out starts after the last use before its step and
    must be over by that step; a move back starts at its step and must be over at the first use.
    """
    now, engine = 0.0, 0.0
    idle_since = np.zeros(model.num_buffers, np.float64)
    ready = np.zeros(model.num_buffers, np.float64)
    for step in range(length):
        token = tokens[step]
        if token >= model.num_ops:
            buffer = (token - model.num_ops) % model.num_buffers
            if token < model.num_ops + model.num_buffers:
                engine = max(engine, idle_since[buffer]) + model.move_cost[buffer]
                now = max(now, engine)
            else:
                engine = max(engine, now) + model.move_cost[buffer]
                ready[buffer] = engine
            continue
        for entry in range(model.read_ptr[token], model.read_ptr[token + 1]):
            now = max(now, ready[model.read[entry]])
        for entry in range(model.write_ptr[token], model.write_ptr[token + 1]):
            now = max(now, ready[model.write[entry]])
        now += model.cost[token]
        for entry in range(model.read_ptr[token], model.read_ptr[token + 1]):
            idle_since[model.read[entry]] = now
        for entry in range(model.write_ptr[token], model.write_ptr[token + 1]):
            idle_since[model.write[entry]] = now
        for entry in range(model.make_ptr[token], model.make_ptr[token + 1]):
            idle_since[model.make[entry]] = now
    return max(now, engine)


@compiled
def computes(model: Model, tokens: IntArray, length: int) -> IntArray:
    """Count how often every op is computed."""
    count = np.zeros(model.num_ops, np.int64)
    for step in range(length):
        if tokens[step] < model.num_ops:
            count[tokens[step]] += 1
    return count


@compiled
def _is_useless(model: Model, op: int, scratch: Scratch) -> bool:
    for entry in range(model.make_ptr[op], model.make_ptr[op + 1]):
        if scratch.wanted[model.make[entry]] == 0:
            return False
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
        if scratch.wanted[model.write[entry]] != -1:
            return False
    return True


@compiled
def drop_useless(
    model: Model, tokens: IntArray, ids: IntArray, length: int, scratch: Scratch, live: IntArray
) -> int:
    """Remove the repeated ops and the moves whose results nobody uses; `ids` go with their tokens."""
    count = computes(model, tokens, length)
    scratch.wanted[:] = model.final
    scratch.until[:] = length
    scratch.host[:] = -1
    live[: length + 2] = 0
    at = length
    for step in range(length - 1, -1, -1):
        token = tokens[step]
        if token < model.num_ops:
            if count[token] > 1 and _is_useless(model, token, scratch):
                count[token] -= 1
                continue
            compute_backwards(model, token, step, scratch, live)
        else:
            buffer = (token - model.num_ops) % model.num_buffers
            is_reload = token >= model.num_ops + model.num_buffers
            if (is_reload and scratch.wanted[buffer] == -1) or (not is_reload and scratch.host[buffer] == -1):
                continue
            move_backwards(model, token, step, scratch, live)
        at -= 1
        tokens[at], ids[at] = token, ids[step]
    tokens[: length - at] = tokens[at:length].copy()
    ids[: length - at] = ids[at:length].copy()
    return length - at


@compiled
def without(
    model: Model, tokens: IntArray, ids: IntArray, length: int, step: int, out: IntArray, out_ids: IntArray
) -> int:
    """Write the schedule without one step (a move out goes with its way back) to `out`; return its length."""
    partner = -1
    if tokens[step] >= model.num_ops:
        for later in range(step + 1, length):
            if tokens[later] == tokens[step] + model.num_buffers:
                partner = later
                break
    at = 0
    for position in range(length):
        if position not in (step, partner):
            out[at], out_ids[at] = tokens[position], ids[position]
            at += 1
    return at


@compiled
def may_go(model: Model, token: int, count: IntArray) -> bool:
    """Whether a step is a repeated op or a move out: what a schedule may do without."""
    if token < model.num_ops:
        return bool(count[token] > 1)
    return token < model.num_ops + model.num_buffers


@compiled
def prune(model: Model, tokens: IntArray, length: int, budget: int, rank: IntArray) -> int:
    """Take back every recompute and move that the budget does not need.

    Args:
        model: the program.
        tokens: a schedule that fits the budget, changed in place.
        length: how many tokens it has.
        budget: bytes it may use.
        rank: order in which to try the steps, as a permutation of them.

    Returns:
        The new length.
    """
    scratch = new_scratch(model.num_buffers)
    live = np.empty(length + 2, np.int64)
    trial, trial_ids = np.empty(length, np.int64), np.empty(length, np.int64)
    ids, where = np.arange(length), np.arange(length)
    first_length, changed = length, True
    while changed:
        changed = False
        count = computes(model, tokens, length)
        for original in rank:
            step = where[original]
            if step < 0 or not may_go(model, tokens[step], count):
                continue
            new_length = without(model, tokens, ids, length, step, trial, trial_ids)
            new_length = drop_useless(model, trial, trial_ids, new_length, scratch, live)
            peak = sweep(model, trial, new_length, scratch, live)
            if peak < 0 or peak > budget:
                continue
            length, changed = new_length, True
            tokens[:length], ids[:length] = trial[:length], trial_ids[:length]
            count = computes(model, tokens, length)
            where[:first_length] = -1
            for position in range(length):
                where[ids[position]] = position
    return length
