"""Kernel: large-neighbourhood search; undo some cuts, move some steps, repair greedily, keep what is cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._numba import compiled
from memwatch.planner.recompute._events import list_events
from memwatch.planner.recompute._greedy import Style, fit, gaps_at, try_cut
from memwatch.planner.recompute._missing import new_search
from memwatch.planner.recompute._prune import computes, drop_useless, duration, may_go, prune, without
from memwatch.planner.recompute._sweep import new_scratch, overflow, sweep

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._sweep import Scratch
    from memwatch.planner.recompute.model import Model


class Effort(NamedTuple):
    """How long and how widely to search."""

    rounds: int
    seed: int
    warmth: float  # accept a schedule dearer by this share of the cost, cooling to nothing
    limit: int  # the most ops one cut may add


@compiled
def shift_one(model: Model, may_shift: IntArray, tokens: IntArray, length: int) -> None:
    """Move a random step to a random place not far away."""
    source = np.random.randint(0, length)
    token = tokens[source]
    if token < model.num_ops and may_shift[token] == 0:
        return
    reach = 1 + np.random.randint(0, max(2, min(length, 40)))
    target = source + (reach if np.random.random() < 0.5 else -reach)
    target = min(max(target, 0), length - 1)
    step = 1 if target > source else -1
    for position in range(source, target, step):
        tokens[position] = tokens[position + step]
    tokens[target] = token


@compiled
def undo_some(
    model: Model, tokens: IntArray, ids: IntArray, length: int, scratch: Scratch, live: IntArray, trial: IntArray
) -> int:  # fmt: skip
    """Take back random recomputes and moves, here and there or all in one window."""
    count = computes(model, tokens, length)
    first, last, share = 0, length, 0.0
    if np.random.random() < 0.5:
        width = max(4, int(length * 0.5 * np.random.random()))
        first = np.random.randint(0, length)
        last, share = min(length, first + width), 0.7
    else:
        share = 0.05 + 0.3 * np.random.random()
    step = length - 1
    while step >= 0:
        if (
            first <= step < last
            and step < length
            and may_go(model, tokens[step], count)
            and np.random.random() < share
        ):
            length = without(model, tokens, ids, length, step, trial, ids)
            tokens[:length] = trial[:length]
            count = computes(model, tokens, length)
        step -= 1
    return drop_useless(model, tokens, ids, length, scratch, live)


@compiled
def cut_anywhere(
    model: Model, tokens: IntArray, length: int, limit: int, scratch: Scratch, live: IntArray, trial: IntArray
) -> int:  # fmt: skip
    """Cut a random idle interval at a random step."""
    if length + limit + 2 >= len(tokens):
        return length
    events, search = list_events(model, tokens, length), new_search(model.num_ops)
    step = np.random.randint(0, length)
    gaps = gaps_at(model, events, step)
    if len(gaps) == 0:
        return length
    row = np.empty(5, np.int64)
    row[:4] = gaps[np.random.randint(0, len(gaps))]
    row[3] = length if row[3] < 0 else row[3]
    row[4] = np.random.randint(0, 3)
    if model.movable[row[0]] == 1 and np.random.random() < 0.5:
        row[4] = 3
    new_length, _price = try_cut(model, tokens, length, events, search, row, step, limit, trial)
    if new_length <= length or sweep(model, trial, new_length, scratch, live) < 0:
        return length
    tokens[:new_length] = trial[:new_length]
    return new_length


@compiled
def _value(
    model: Model, tokens: IntArray, length: int, budget: int, scratch: Scratch, live: IntArray
) -> tuple[float, float]:
    """Return (bytes above the budget summed over steps, cost); overflow infinite for an invalid schedule."""
    if sweep(model, tokens, length, scratch, live) < 0:
        return np.inf, np.inf
    return overflow(model, tokens, length, live, budget), duration(model, tokens, length)


@compiled
def _disturb(
    model: Model, may_shift: IntArray, tokens: IntArray, ids: IntArray, length: int, limit: int, scratch: Scratch,
    live: IntArray, trial: IntArray,
) -> int:  # fmt: skip
    choice = np.random.random()
    if choice < 0.35:
        return undo_some(model, tokens, ids, length, scratch, live, trial)
    if choice < 0.6:
        length = cut_anywhere(model, tokens, length, limit, scratch, live, trial)
        if choice < 0.5:
            return undo_some(model, tokens, ids, length, scratch, live, trial)
        return length
    for _ in range(1 + np.random.randint(0, 3)):
        trial[:length] = tokens[:length]
        shift_one(model, may_shift, trial, length)
        if sweep(model, trial, length, scratch, live) >= 0:
            tokens[:length] = trial[:length]
    if choice < 0.8:
        return undo_some(model, tokens, ids, length, scratch, live, trial)
    return length


@compiled
def polish(
    model: Model, may_shift: IntArray, tokens: IntArray, length: int, budget: int, effort: Effort
) -> int:
    """Search for a cheaper schedule within a budget, or for less overflow while none fits.

    Args:
        model: the program.
        may_shift: ops that may change their place (1) or must stay in order (0).
        tokens: the best schedule known, replaced by a better one; its spare room limits the length.
        length: how many tokens it has.
        budget: bytes it may use.
        effort: how long to search.

    Returns:
        The length of the best schedule.
    """
    np.random.seed(effort.seed)
    scratch = new_scratch(model.num_buffers)
    live, trial = np.empty(len(tokens) + 2, np.int64), np.empty(len(tokens), np.int64)
    now, next_ = tokens.copy(), tokens.copy()
    ids = np.arange(len(tokens))
    now_length, now_value = length, _value(model, tokens, length, budget, scratch, live)
    best_value = now_value
    for turn in range(effort.rounds):
        next_[:now_length] = now[:now_length]
        next_length = _disturb(model, may_shift, next_, ids, now_length, effort.limit, scratch, live, trial)
        power = 0.5 + np.random.random()
        style = Style(power, 0.5 * np.random.random(), effort.limit, 8, 4 * model.num_ops)
        next_length, peak = fit(model, next_, next_length, budget, style)
        if peak <= budget:
            next_length = prune(model, next_, next_length, budget, np.random.permutation(next_length))
        value = _value(model, next_, next_length, budget, scratch, live)
        allowed = effort.warmth * model.cost.sum() * (1.0 - turn / effort.rounds) * np.random.random()
        if value[0] < now_value[0] or (value[0] == now_value[0] and value[1] <= now_value[1] + allowed):
            now_length, now_value = next_length, value
            now[:now_length] = next_[:now_length]
            if value < best_value:
                best_value, length = value, next_length
                tokens[:length] = next_[:length]
    return length
