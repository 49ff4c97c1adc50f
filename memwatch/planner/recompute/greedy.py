"""Kernel: cut gaps at the peak, one after the other, until the schedule fits the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._random import random_unit
from memwatch.planner.kernels import with_twin
from memwatch.planner.native import calls
from memwatch.planner.recompute.cuts import (
    BUFFER,
    KEPT,
    MOVE,
    RECOMPUTE,
    SINCE,
    UNTIL,
    WAY,
    Cut,
    OpSearch,
    Scene,
    apply_cut,
    cut_of,
    gaps_at,
    missing_ops,
    move_points,
    new_op_search,
    price_of,
)
from memwatch.planner.recompute.draft import (
    Draft,
    Work,
    copy_draft,
    list_events,
    new_draft,
    new_work,
    overflow,
    sweep,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model


_TINY = 1e-9  # keeps a free cut from dividing by zero
_MANY_GAPS = 256  # with more gaps at a step, only the widest gaps of each class of ops are examined; a guess
_KEPT_PER_CLASS = 16  # gaps per class that are examined then; a guess
_MOST_MISSES = 6  # steps in a row at which no cut helps, before the search gives up; a guess
_AS_GOOD = 0.8  # a cut in all blocks at once is made if it scores at least this share of the best single cut; a guess


class Style(NamedTuple):
    """Settings of the greedy search."""

    budget: int  # bytes
    area_power: float  # score = overflow removed ** area_power / cost
    noise: float  # scores are multiplied by 1 + noise * uniform(0, 1)
    limit: int  # the most ops one cut may add
    shortlist: int  # how many cuts are tried out per step
    max_cuts: int
    spread: bool  # make the same cut in all repeated blocks at once
    random: NDArray[np.uint64]  # random state


class Tools(NamedTuple):
    """Working memory of the search."""

    work: Work  # of the current schedule
    trial_work: Work
    search: OpSearch
    trial: Draft
    best: Draft


class Ranking(NamedTuple):
    """Cuts that would lower the peak: a table, the score of each row, and the rows by score."""

    rows: IntArray
    score: NDArray[np.float64]
    ranked: IntArray


class Area(NamedTuple):
    """Running sums over the steps: bytes above the budget, and the number of steps above it."""

    nbytes: IntArray
    steps: IntArray


def new_tools(model: Model, room: int) -> Tools:
    """Allocate the working memory for schedules of up to `room` steps."""
    return Tools(
        new_work(model, room),
        new_work(model, room),
        new_op_search(model.num_ops),
        new_draft(room),
        new_draft(room),
    )


def _area(draft: Draft, work: Work, budget: int) -> Area:
    area = Area(np.zeros(draft.size[0] + 1, np.int64), np.zeros(draft.size[0] + 1, np.int64))
    for step in range(draft.size[0]):
        above = max(work.live[step] - budget, 0)
        area.nbytes[step + 1] = area.nbytes[step] + above
        area.steps[step + 1] = area.steps[step] + (above > 0)
    return area


def _covered(model: Model, area: Area, buffer: int, since: int, until: int) -> float:
    """Return a bound on the bytes above the budget, summed over steps, that a gap is responsible for."""
    steps = area.steps[until] - area.steps[since + 1]
    return float(min(model.nbytes[buffer] * steps, area.nbytes[until] - area.nbytes[since + 1]))


def _gaps_to_examine(model: Model, area: Area, gaps: IntArray) -> IntArray:
    """Return the gaps to examine: of very many, only the widest ones of every class of ops."""
    if len(gaps) <= _MANY_GAPS:
        return gaps
    width = np.empty(len(gaps), np.float64)
    for gap in range(len(gaps)):
        width[gap] = -_covered(model, area, gaps[gap, BUFFER], gaps[gap, SINCE], gaps[gap, UNTIL])
    most = max(_KEPT_PER_CLASS, model.num_ops // 500)
    taken = np.zeros(model.num_ops + 1, np.int64)
    kept, count = np.empty(len(gaps), np.int64), 0
    for gap in np.argsort(width, kind="mergesort"):
        producer = model.producer[gaps[gap, BUFFER]]
        kind = model.kind[producer] if producer >= 0 else model.num_ops
        if taken[kind] < most:
            taken[kind] += 1
            kept[count] = gap
            count += 1
    return gaps[kept[:count]]


def _estimate(model: Model, scene: Scene, cut: Cut, area: Area) -> tuple[float, float]:
    """Return an estimate of (overflow removed, price) for a cut whose missing ops were just found, or a move."""
    net = _covered(model, area, cut.buffer, cut.since, cut.until)
    if cut.way == MOVE:
        return net, move_points(model, scene, cut)[2]
    search = scene.search
    for position in range(search.counts[KEPT]):
        net -= _covered(model, area, search.kept[position, 0], search.kept[position, 1], cut.until)
    return net, price_of(model, search)


def _rank_cuts(model: Model, scene: Scene, work: Work, peak_step: int, style: Style) -> Ranking:
    """Return the cuts that lower live bytes at a step, ranked."""
    area = _area(scene.draft, work, style.budget)
    gaps = _gaps_to_examine(model, area, gaps_at(model, scene.events, scene.draft, peak_step))
    rows = np.empty((4 * len(gaps) + 1, 6), np.int64)
    score = np.empty(4 * len(gaps), np.float64)
    count = 0
    for gap in range(len(gaps)):
        before = -1
        for way in range(RECOMPUTE, MOVE + 1):
            rows[count] = gaps[gap]
            rows[count, WAY] = way
            cut = cut_of(rows[count])
            if way == MOVE:
                if model.movable[cut.buffer] == 0:
                    continue
            else:
                found = missing_ops(model, scene.events, scene.search, cut, style.limit)
                if found < 0 or found == before:
                    continue
                before = found
            net, price = _estimate(model, scene, cut, area)
            if net > 0:
                score[count] = net**style.area_power / (price + _TINY)
                count += 1
    return Ranking(rows[:count], score[:count], np.argsort(-score[:count], kind="mergesort"))


def _gain(model: Model, tools: Tools, budget: int, before: float) -> float:
    """Return how much less overflow the trial has; -1 for a trial that is not valid."""
    if sweep(model, tools.trial, tools.trial_work) < 0:
        return -1.0
    return before - overflow(model, tools.trial, tools.trial_work, budget)


def _same_cut_in_other_blocks(model: Model, ranking: Ranking, chosen: int, needed: int) -> IntArray:
    """Return the same cut in other blocks, as often as needed to free enough bytes."""
    row = ranking.rows[chosen]
    kind = model.kind[model.producer[row[BUFFER]]]
    nbytes = model.nbytes[row[BUFFER]]
    ranks, count = np.empty(len(ranking.rows), np.int64), 0
    for rank in ranking.ranked:
        other = ranking.rows[rank]
        producer = model.producer[other[BUFFER]]
        if producer < 0 or model.kind[producer] != kind:
            continue
        if other[WAY] == row[WAY] and model.nbytes[other[BUFFER]] == nbytes:
            ranks[count] = rank
            count += 1
            needed -= nbytes
            if needed <= 0:
                break
    # from the last to the first, because a cut changes the numbers of all steps after it
    untils = ranking.rows[ranks[:count], UNTIL]
    return ranks[:count][np.argsort(-untils, kind="mergesort")]


def _make_cuts(model: Model, scene: Scene, tools: Tools, rows: IntArray, limit: int) -> float:
    """Make several cuts in the trial schedule; return their price."""
    copy_draft(scene.draft, tools.trial)
    total = 0.0
    for row in rows:
        if tools.trial.size[0] + limit + 2 < len(tools.trial.tokens):
            total += apply_cut(model, scene, tools.trial, cut_of(row), limit)[1]
    return total


def _best_cut(model: Model, draft: Draft, tools: Tools, peak_step: int, style: Style) -> bool:
    """Write the best schedule that is one cut away to ``tools.best``; return False if no cut helps."""
    scene = Scene(draft, list_events(model, draft), tools.search, tools.work.live, style.budget)
    before = overflow(model, draft, tools.work, style.budget)
    ranking = _rank_cuts(model, scene, tools.work, peak_step, style)
    best_score = 0.0
    chosen = -1
    tried = 0
    for rank in ranking.ranked:
        if tried >= (style.shortlist if chosen >= 0 else 4 * style.shortlist):
            break
        tried += 1
        price = _make_cuts(model, scene, tools, ranking.rows[rank : rank + 1], style.limit)
        gain = _gain(model, tools, style.budget, before)
        if gain <= 0:
            continue
        score = gain**style.area_power / (price + _TINY) * (1.0 + style.noise * random_unit(style.random))
        if score > best_score:
            best_score, chosen = score, rank
            copy_draft(tools.trial, tools.best)
    if style.spread and chosen >= 0 and ranking.rows[chosen, WAY] != MOVE:
        alike = _same_cut_in_other_blocks(model, ranking, chosen, tools.work.live[peak_step] - style.budget)
        price = _make_cuts(model, scene, tools, ranking.rows[alike], style.limit)
        gain = _gain(model, tools, style.budget, before)
        if gain > 0 and gain**style.area_power / (price + _TINY) > _AS_GOOD * best_score:
            copy_draft(tools.trial, tools.best)
    return chosen >= 0


def _highest_step(draft: Draft, work: Work, barred: IntArray) -> int:
    """Return the first step with the most live bytes. Skip barred steps."""
    best = -1
    for step in range(draft.size[0]):
        if barred[step] == 0 and (best < 0 or work.live[step] > work.live[best]):
            best = step
    return best


@with_twin(calls.fit)
def fit(model: Model, draft: Draft, style: Style) -> int:
    """Cut gaps until the schedule fits the budget or no cut helps; return the peak (bytes).

    Args:
        model: the program.
        draft: the schedule, changed in place; its spare room limits how long it may grow.
        style: the budget, and how to choose.
    """
    tools = new_tools(model, len(draft.tokens))
    barred = np.zeros(len(draft.tokens), np.int64)
    peak = sweep(model, draft, tools.work)
    cuts, misses = 0, 0
    while peak > style.budget and cuts < style.max_cuts and misses < _MOST_MISSES:
        peak_step = _highest_step(draft, tools.work, barred)
        if peak_step < 0 or tools.work.live[peak_step] <= style.budget:
            break
        if not _best_cut(model, draft, tools, peak_step, style):
            barred[peak_step] = 1
            misses += 1
            continue
        barred[:] = 0
        misses = 0
        cuts += 1
        copy_draft(tools.best, draft)
        peak = sweep(model, draft, tools.work)
    return peak
