"""Kernel: large-neighbourhood search. Undo some cuts, move some steps, repair greedily, keep cheaper schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._random import permutation, random_below, random_unit
from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.recompute.cuts import (
    MOVE,
    WAY,
    OpSearch,
    Scene,
    apply_cut,
    cut_of,
    gaps_at,
    new_op_search,
)
from memwatch.planner.recompute.draft import (
    Draft,
    Work,
    copy_draft,
    list_events,
    load_tokens,
    new_draft,
    new_work,
    overflow,
    sweep,
)
from memwatch.planner.recompute.greedy import Style, fit
from memwatch.planner.recompute.prune import (
    computes,
    drop_useless,
    duration,
    is_removable,
    prune,
    remove_step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.recompute.model import Model


_FARTHEST = 40  # most steps that one step is moved by; a guess


class Effort(NamedTuple):
    """Length and width of the search."""

    budget: int  # bytes
    rounds: int
    warmth: float  # a schedule dearer by this share of the cost may be accepted; the share falls to 0
    limit: int  # the most ops one cut may add
    total_cost: float  # of the program
    random: NDArray[np.uint64]  # random state


class Bench(NamedTuple):
    """Working memory of the search."""

    work: Work
    search: OpSearch
    trial: Draft
    random: NDArray[np.uint64]


def move_random_step(model: Model, draft: Draft, bench: Bench) -> None:
    """Move a random step to a random place nearby, if the schedule stays valid."""
    size = draft.size[0]
    source = random_below(bench.random, size)
    token = draft.tokens[source]
    if token < model.num_ops and model.stays[token] == 1:
        return
    reach = 1 + random_below(bench.random, max(2, min(size, _FARTHEST)))
    target = source + (reach if random_unit(bench.random) < 0.5 else -reach)
    target = min(max(target, 0), size - 1)
    copy_draft(draft, bench.trial)
    tokens, step = bench.trial.tokens, 1 if target > source else -1
    for position in range(source, target, step):
        tokens[position] = tokens[position + step]
    tokens[target] = token
    if sweep(model, bench.trial, bench.work) >= 0:
        copy_draft(bench.trial, draft)


def undo_random_cuts(model: Model, draft: Draft, bench: Bench) -> None:
    """Take back random recomputes and moves: a few anywhere, or most of them in one window."""
    count = computes(model, draft)
    first = 0
    last = draft.size[0]
    share = 0.05 + 0.3 * random_unit(bench.random)
    if random_unit(bench.random) < 0.5:
        width = max(4, int(draft.size[0] * 0.5 * random_unit(bench.random)))
        first = random_below(bench.random, draft.size[0])
        last, share = min(draft.size[0], first + width), 0.7
    for step in range(last - 1, first - 1, -1):
        if (
            step < draft.size[0]
            and is_removable(model, draft, step, count)
            and random_unit(bench.random) < share
        ):
            remove_step(model, draft, step)
            count = computes(model, draft)
    drop_useless(model, draft, bench.work)


def cut_random_gap(model: Model, draft: Draft, bench: Bench, effort: Effort) -> None:
    """Cut a random gap at a random step, if the schedule stays valid."""
    if draft.size[0] + effort.limit + 2 >= len(draft.tokens):
        return
    events = list_events(model, draft)
    gaps = gaps_at(model, events, draft, random_below(bench.random, draft.size[0]))
    if len(gaps) == 0:
        return
    row = gaps[random_below(bench.random, len(gaps))]
    row[WAY] = random_below(bench.random, MOVE)
    if model.movable[row[0]] == 1 and random_unit(bench.random) < 0.5:
        row[WAY] = MOVE
    copy_draft(draft, bench.trial)
    sweep(model, draft, bench.work)
    # with -1 no step can hide a copy: both are made at once
    budget = effort.budget if random_unit(bench.random) < 0.5 else -1
    scene = Scene(draft, events, bench.search, bench.work.live, budget)
    done = apply_cut(model, scene, bench.trial, cut_of(row), effort.limit)[0]
    if done and sweep(model, bench.trial, bench.work) >= 0:
        copy_draft(bench.trial, draft)


def _value(model: Model, draft: Draft, work: Work, budget: int) -> tuple[float, float]:
    """Return (bytes above the budget summed over steps, cost); infinite for an invalid schedule."""
    if sweep(model, draft, work) < 0:
        return np.inf, np.inf
    return overflow(model, draft, work, budget), duration(model, draft)


def _change_randomly(model: Model, draft: Draft, bench: Bench, effort: Effort) -> None:
    """Change a schedule at random: by a cut, by moved steps, by undone cuts, or by two of these."""
    choice = random_unit(bench.random)
    if 0.35 <= choice < 0.6:
        cut_random_gap(model, draft, bench, effort)
    if choice >= 0.6:
        for _ in range(1 + random_below(bench.random, 3)):
            move_random_step(model, draft, bench)
    if choice < 0.5 or 0.6 <= choice < 0.8:
        undo_random_cuts(model, draft, bench)


@with_twin(calls.polish)
def polish(model: Model, draft: Draft, effort: Effort) -> None:
    """Replace a schedule by a cheaper one within the budget or, while none fits, by one closer to it.

    Args:
        model: the program.
        draft: the best schedule known, replaced by a better one; its spare room limits the length.
        effort: the budget, and how long to search.
    """
    room, random = len(draft.tokens), effort.random
    bench = Bench(new_work(model, room), new_op_search(model.num_ops), new_draft(room), random)
    now, then = new_draft(room), new_draft(room)
    load_tokens(now, draft.tokens[: draft.size[0]])
    now_value = _value(model, now, bench.work, effort.budget)
    best_value = now_value
    for turn in range(effort.rounds):
        copy_draft(now, then)
        _change_randomly(model, then, bench, effort)
        power, noise = 0.5 + random_unit(random), 0.5 * random_unit(random)
        style = Style(effort.budget, power, noise, effort.limit, 8, 4 * model.num_ops, False, random)
        if fit(model, then, style) <= effort.budget:
            prune(model, then, effort.budget, permutation(random, then.size[0]))
        value = _value(model, then, bench.work, effort.budget)
        allowed = effort.warmth * effort.total_cost * (1.0 - turn / effort.rounds) * random_unit(random)
        if value[0] < now_value[0] or (value[0] == now_value[0] and value[1] <= now_value[1] + allowed):
            copy_draft(then, now)
            now_value = value
            if value < best_value:
                best_value = value
                copy_draft(then, draft)
