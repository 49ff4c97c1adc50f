"""Kernel: the cost of a schedule, and the removal of recomputes and moves that it does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.recompute.draft import (
    begin_sweep,
    compute_backwards,
    copy_draft,
    move_backwards,
    new_draft,
    new_work,
    remove_steps,
    sweep,
)

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.draft import Draft, Work
    from memwatch.planner.recompute.model import Model


@with_twin(calls.duration)
def duration(model: Model, draft: Draft) -> float:
    """Return the time from the first step to the last, in the unit of the ops' costs.

    One copy engine runs while ops compute. A move out starts after the last use before its step and must
    have ended at that step. A move back starts at its step and must have ended at the first use.
    """
    now, engine = 0.0, 0.0
    idle_since = np.zeros(model.num_buffers, np.float64)
    ready = np.zeros(model.num_buffers, np.float64)
    for step in range(draft.size[0]):
        token = draft.tokens[step]
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


def computes(model: Model, draft: Draft) -> IntArray:
    """Return how often every op is computed."""
    count = np.zeros(model.num_ops, np.int64)
    for step in range(draft.size[0]):
        if draft.tokens[step] < model.num_ops:
            count[draft.tokens[step]] += 1
    return count


def _is_useless(model: Model, op: int, work: Work, is_first: bool) -> bool:
    for entry in range(model.make_ptr[op], model.make_ptr[op + 1]):
        if work.wanted[model.make[entry]] == 0:
            return False
    useful = 0
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
        useful += (is_first or not model.once[entry]) and work.wanted[model.write[entry]] != -1
    return bool(useful == 0)


def drop_useless(model: Model, draft: Draft, work: Work) -> None:
    """Remove the repeated ops and the moves whose results are not used."""
    count = computes(model, draft)
    before = count.copy()  # computations before the present step
    begin_sweep(model, draft, work)
    size = at = draft.size[0]
    for step in range(size - 1, -1, -1):
        token = draft.tokens[step]
        if token < model.num_ops:
            before[token] -= 1
            # the first run of an op with the mark `stays` keeps its place, so a later run is dropped instead
            is_bound = model.stays[token] == 1 and before[token] == 0
            if count[token] > 1 and not is_bound and _is_useless(model, token, work, before[token] == 0):
                count[token] -= 1
                work.left[token] -= model.has_once
                continue
            compute_backwards(model, token, step, work)
        else:
            buffer = (token - model.num_ops) % model.num_buffers
            is_reload = token >= model.num_ops + model.num_buffers
            if (is_reload and work.wanted[buffer] == -1) or (not is_reload and work.host[buffer] == -1):
                continue
            move_backwards(model, token, step, work)
        at -= 1
        draft.tokens[at], draft.ids[at] = token, draft.ids[step]
    draft.tokens[: size - at] = draft.tokens[at:size].copy()
    draft.ids[: size - at] = draft.ids[at:size].copy()
    draft.size[0] = size - at


def remove_step(model: Model, draft: Draft, step: int) -> None:
    """Remove one step; a move out is removed together with the move back."""
    partner = -1
    token = draft.tokens[step]
    if token >= model.num_ops:
        for later in range(step + 1, draft.size[0]):
            if draft.tokens[later] == token + model.num_buffers:
                partner = later
                break
    remove_steps(draft, step, partner)


def is_removable(model: Model, draft: Draft, step: int, count: IntArray) -> bool:
    """Return True for a step that a schedule may do without: a repeated op or a move out."""
    token = draft.tokens[step]
    if token >= model.num_ops:
        return bool(token < model.num_ops + model.num_buffers)
    if count[token] < 2:
        return False
    return bool(model.stays[token] == 0 or np.any(draft.tokens[:step] == token))


@with_twin(calls.prune)
def prune(model: Model, draft: Draft, budget: int, rank: IntArray) -> None:
    """Remove every recompute and move that the budget does not need.

    Args:
        model: the program.
        draft: a schedule that fits the budget, changed in place.
        budget: bytes it may use.
        rank: the steps in the order of the trials.
    """
    length = draft.size[0]
    draft.ids[:length] = np.arange(length)
    work = new_work(model, length)
    trial = new_draft(length)
    where = np.arange(length)
    changed = True
    while changed:
        changed = False
        count = computes(model, draft)
        for original in rank:
            step = where[original]
            if step < 0 or not is_removable(model, draft, step, count):
                continue
            copy_draft(draft, trial)
            remove_step(model, trial, step)
            drop_useless(model, trial, work)
            peak = sweep(model, trial, work)
            if peak < 0 or peak > budget:
                continue
            changed = True
            copy_draft(trial, draft)
            count = computes(model, draft)
            where[:] = -1
            for position in range(draft.size[0]):
                where[draft.ids[position]] = position
