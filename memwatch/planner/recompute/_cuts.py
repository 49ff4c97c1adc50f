"""Kernel: the gaps at a step, and the two ways to cut one: compute the buffer again, or move it out and back.

A gap is a stretch of steps in which a buffer lies idle between two uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.recompute._draft import Draft, insert
from memwatch.planner.recompute._events import Events, first_at, left_before
from memwatch.planner.recompute._missing import MOVE, Cut, Search, missing_ops, price_of

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model

# columns of a table of cuts: the fields of a `Cut`
BUFFER, VERSION, SINCE, UNTIL, WAY, PEAK_STEP = 0, 1, 2, 3, 4, 5


class Scene(NamedTuple):
    """The schedule in which cuts are searched for."""

    draft: Draft
    events: Events  # which steps use which buffer
    search: Search  # working memory
    live: IntArray  # step -> bytes alive while it runs
    budget: int  # bytes


def cut_of(row: IntArray) -> Cut:
    """Return one row of a table of cuts."""
    return Cut(row[BUFFER], row[VERSION], row[SINCE], row[UNTIL], row[WAY], row[PEAK_STEP])


def gaps_at(model: Model, events: Events, draft: Draft, step: int) -> IntArray:
    """Return the buffers that are idle at a step and wanted later, as a table of cuts."""
    rows = np.zeros((model.num_buffers, 6), np.int64)
    count = 0
    for buffer in range(model.num_buffers):
        if model.nbytes[buffer] == 0:
            continue
        slot = first_at(events, buffer, step)
        is_last = slot == events.ptr[buffer + 1]
        if not is_last and events.step[slot] == step:
            continue
        version = model.final[buffer] if is_last else events.needs[slot]
        if version < 0:
            continue
        left, since = left_before(model, events, buffer, step)
        if left != version:
            continue
        row = rows[count]
        row[BUFFER], row[VERSION], row[SINCE], row[PEAK_STEP] = buffer, version, since, step
        row[UNTIL] = draft.size[0] if is_last else events.step[slot]
        count += 1
    return rows[:count]


def move_points(model: Model, scene: Scene, cut: Cut) -> tuple[int, int, float]:
    """Return where to move a buffer out and back, so that computing hides the copies as far as possible.

    A buffer is alive while it is copied, so only steps that are within the budget with it can hide a copy.

    Returns:
        The step before which it is moved out, the step before which it is moved back, and the time not hidden.
    """
    tokens, live = scene.draft.tokens, scene.live
    left, out_before = model.move_cost[cut.buffer], cut.since + 1
    while left > 0 and out_before < cut.peak_step and live[out_before] <= scene.budget:
        if tokens[out_before] < model.num_ops:
            left -= model.cost[tokens[out_before]]
        out_before += 1
    stall, left, in_before = max(left, 0.0), model.move_cost[cut.buffer], cut.until
    while left > 0 and in_before - 1 > cut.peak_step and live[in_before - 1] <= scene.budget:
        in_before -= 1
        if tokens[in_before] < model.num_ops:
            left -= model.cost[tokens[in_before]]
    return out_before, in_before, stall + max(left, 0.0)


def apply_cut(model: Model, scene: Scene, target: Draft, cut: Cut, limit: int) -> tuple[bool, float]:
    """Make a cut in `target`; return whether it was possible, and its price.

    Up to the end of the cut, `target` must equal the schedule of the scene.
    """
    if cut.way == MOVE:
        out_before, in_before, price = move_points(model, scene, cut)
        token = np.empty(1, np.int64)
        token[0] = model.num_ops + model.num_buffers + cut.buffer
        insert(target, in_before, token)
        token[0] = model.num_ops + cut.buffer
        insert(target, out_before, token)
        return True, price
    found = missing_ops(model, scene.events, scene.search, cut, limit)
    if found < 0:
        return False, 0.0
    insert(target, cut.until, scene.search.ops[:found])
    return True, price_of(model, scene.search)
