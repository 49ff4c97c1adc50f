"""Kernel: cut idle intervals at the peak, one after the other, until the schedule fits the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._numba import compiled
from memwatch.planner.recompute._events import first_at, left_before, list_events
from memwatch.planner.recompute._missing import KEEP, KEEP_IF_LATE, RECOMPUTE, missing_ops, new_search
from memwatch.planner.recompute._sweep import new_scratch, overflow, sweep

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._events import Events
    from memwatch.planner.recompute._missing import Search
    from memwatch.planner.recompute._sweep import Scratch
    from memwatch.planner.recompute.model import Model

MOVE = 3  # a way to cut: move the buffer out and back


class Style(NamedTuple):
    """How the greedy search chooses."""

    area_power: float  # score = overflow removed ** area_power / cost
    noise: float  # scores are multiplied by 1 + noise * uniform(0, 1)
    limit: int  # the most ops one cut may add
    shortlist: int  # how many cuts are tried out per step
    max_cuts: int


class Cut(NamedTuple):
    """A cut to try: `buffer` is idle from after `since` to before `until`, where `version` is wanted."""

    buffer: int
    version: int
    since: int
    until: int
    way: int


@compiled
def gaps_at(model: Model, events: Events, step: int) -> IntArray:
    """List the buffers idle at a step and wanted later: rows of (buffer, version, since, until)."""
    rows = np.empty((model.num_buffers, 4), np.int64)
    count = 0
    for buffer in range(model.num_buffers):
        if model.nbytes[buffer] == 0:
            continue
        slot = first_at(events, buffer, step)
        end = events.ptr[buffer + 1]
        if slot < end and events.step[slot] == step:
            continue
        version = model.final[buffer] if slot == end else events.needs[slot]
        if version < 0:
            continue
        left, since = left_before(model, events, buffer, step)
        if left != version:
            continue
        rows[count, 0], rows[count, 1], rows[count, 2] = buffer, version, since
        rows[count, 3] = -1 if slot == end else events.step[slot]
        count += 1
    return rows[:count]


@compiled
def apply_recompute(tokens: IntArray, length: int, at: int, ops: IntArray, count: int, out: IntArray) -> int:
    """Write the schedule with some ops inserted before a step to `out`; return its length."""
    out[:at] = tokens[:at]
    out[at : at + count] = ops[:count]
    out[at + count : length + count] = tokens[at:length]
    return length + count


@compiled
def apply_move(
    model: Model, tokens: IntArray, length: int, buffer: int, out_after: int, in_before: int, out: IntArray
) -> int:
    """Write the schedule with a buffer moved out after one step and back before another to `out`."""
    out[: out_after + 1] = tokens[: out_after + 1]
    out[out_after + 1] = model.num_ops + buffer
    out[out_after + 2 : in_before + 1] = tokens[out_after + 1 : in_before]
    out[in_before + 1] = model.num_ops + model.num_buffers + buffer
    out[in_before + 2 : length + 2] = tokens[in_before:length]
    return length + 2


@compiled
def move_points(
    model: Model, tokens: IntArray, buffer: int, since: int, until: int, peak_step: int
) -> tuple[int, int, float]:
    """Choose where to move a buffer out and back so that computing hides the copies as far as possible.

    Returns:
        The step after which it is out, the step before which it is fetched, and the time not hidden.
    """
    budget, out_after = model.move_cost[buffer], since
    while budget > 0 and out_after + 1 < peak_step:
        out_after += 1
        if tokens[out_after] < model.num_ops:
            budget -= model.cost[tokens[out_after]]
    stall, budget, in_before = max(budget, 0.0), model.move_cost[buffer], until
    while budget > 0 and in_before - 1 > peak_step:
        in_before -= 1
        if tokens[in_before] < model.num_ops:
            budget -= model.cost[tokens[in_before]]
    return out_after, in_before, stall + max(budget, 0.0)


@compiled
def _prefix(live: IntArray, length: int, budget: int) -> tuple[IntArray, IntArray]:
    """Return running sums over the steps: bytes above the budget, and steps above the budget."""
    area, steps = np.zeros(length + 1, np.int64), np.zeros(length + 1, np.int64)
    for step in range(length):
        above = max(live[step] - budget, 0)
        area[step + 1] = area[step] + above
        steps[step + 1] = steps[step] + (above > 0)
    return area, steps


@compiled
def _covered(model: Model, area: IntArray, steps: IntArray, buffer: int, since: int, until: int) -> int:
    """Bound what an idle interval of a buffer contributes to the bytes above the budget."""
    return min(model.nbytes[buffer] * (steps[until] - steps[since + 1]), area[until] - area[since + 1])


@compiled
def _candidates(
    model: Model, tokens: IntArray, length: int, events: Events, search: Search, live: IntArray, budget: int,
    peak_step: int, style: Style,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """Rank the cuts that relieve a step; rows are (buffer, version, since, until, way)."""
    gaps = gaps_at(model, events, peak_step)
    area, steps = _prefix(live, length, budget)
    rows = np.empty((4 * len(gaps), 5), np.int64)
    score = np.empty(4 * len(gaps), np.float64)
    count = 0
    for gap in range(len(gaps)):
        buffer, version, since, until = gaps[gap]
        until = length if until < 0 else until
        covered = _covered(model, area, steps, buffer, since, until)
        before = -1
        for way in (RECOMPUTE, KEEP_IF_LATE, KEEP, MOVE):
            net = covered
            if way == MOVE:
                if model.movable[buffer] == 0:
                    continue
                price = move_points(model, tokens, buffer, since, until, peak_step)[2]
            else:
                found = missing_ops(
                    model, events, search, buffer, version, until, peak_step, way, style.limit
                )
                if found < 0 or found == before:
                    continue
                before = found
                for position in range(search.number[1]):
                    kept, kept_since = search.kept[position]
                    net -= _covered(model, area, steps, kept, kept_since, until)
                price = 0.0
                for position in range(found):
                    price += model.cost[search.ops[position]]
            if net <= 0:
                continue
            rows[count, 0], rows[count, 1], rows[count, 2] = buffer, version, since
            rows[count, 3], rows[count, 4] = until, way
            score[count] = np.float64(net) ** style.area_power / (price + 1e-9)
            count += 1
    ranked = np.argsort(-score[:count], kind="mergesort")
    return rows, ranked


@compiled
def try_cut(
    model: Model, tokens: IntArray, length: int, events: Events, search: Search, row: IntArray, peak_step: int,
    limit: int, out: IntArray,
) -> tuple[int, float]:  # fmt: skip
    """Write the schedule after a cut to `out`; return its length (0: impossible) and the price of the cut."""
    buffer, version, since, until, way = row
    if way == MOVE:
        out_after, in_before, price = move_points(model, tokens, buffer, since, until, peak_step)
        return apply_move(model, tokens, length, buffer, out_after, in_before, out), price
    found = missing_ops(model, events, search, buffer, version, until, peak_step, way, limit)
    if found < 0:
        return 0, 0.0
    price = 0.0
    for position in range(found):
        price += model.cost[search.ops[position]]
    return apply_recompute(tokens, length, until, search.ops, found, out), price


@compiled
def _best_cut(
    model: Model, tokens: IntArray, length: int, scratch: Scratch, live: IntArray, search: Search, budget: int,
    peak_step: int, style: Style, trial: IntArray, best: IntArray, trial_live: IntArray,
) -> int:  # fmt: skip
    """Write the best schedule that is one cut away to `best`; return its length, 0 when no cut helps."""
    events = list_events(model, tokens, length)
    area = overflow(model, tokens, length, live, budget)
    rows, ranked = _candidates(model, tokens, length, events, search, live, budget, peak_step, style)
    best_score, best_length = 0.0, 0
    tried = 0
    for rank in ranked:
        if tried >= style.shortlist and best_length > 0:
            break
        if tried >= 4 * style.shortlist:
            break
        tried += 1
        if length + style.limit + 2 >= len(trial):
            break
        new_length, price = try_cut(
            model, tokens, length, events, search, rows[rank], peak_step, style.limit, trial
        )
        if sweep(model, trial, new_length, scratch, trial_live) < 0:
            continue
        gain = area - overflow(model, trial, new_length, trial_live, budget)
        if gain <= 0:
            continue
        score = gain**style.area_power / (price + 1e-9) * (1.0 + style.noise * np.random.random())
        if score > best_score:
            best_score, best_length = score, new_length
            best[:new_length] = trial[:new_length]
    return best_length


@compiled
def highest_step(live: IntArray, length: int, barred: IntArray) -> int:
    """Return the first step with the most live bytes among those that are not barred."""
    best = -1
    for step in range(length):
        if barred[step] == 0 and (best < 0 or live[step] > live[best]):
            best = step
    return best


@compiled
def fit(model: Model, tokens: IntArray, length: int, budget: int, style: Style) -> tuple[int, int]:
    """Cut intervals until the schedule fits the budget or no cut helps.

    Args:
        model: the program.
        tokens: the schedule, changed in place; its spare room limits how long it may grow.
        length: how many tokens it has.
        budget: bytes it may use.
        style: how to choose.

    Returns:
        The new length and the new peak (bytes).
    """
    scratch, search = new_scratch(model.num_buffers), new_search(model.num_ops)
    live, trial_live = np.empty(len(tokens) + 2, np.int64), np.empty(len(tokens) + 2, np.int64)
    trial, best = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64)
    barred = np.zeros(len(tokens), np.int64)
    peak = sweep(model, tokens, length, scratch, live)
    cuts, misses = 0, 0
    while peak > budget and cuts < style.max_cuts and misses < 6:
        peak_step = highest_step(live, length, barred)
        if peak_step < 0 or live[peak_step] <= budget:
            break
        new_length = _best_cut(
            model, tokens, length, scratch, live, search, budget, peak_step, style, trial, best, trial_live
        )
        if new_length == 0:
            barred[peak_step] = 1
            misses += 1
            continue
        barred[:] = 0
        misses = 0
        cuts += 1
        length = new_length
        tokens[:length] = best[:length]
        peak = sweep(model, tokens, length, scratch, live)
    return length, peak
