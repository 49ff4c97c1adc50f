"""Search for cheap schedules within a budget.

A *gap* is the stretch of steps between two uses of a buffer, in which the buffer is idle but takes memory. A *cut* of
the gap frees the buffer. It is computed again before its next use, or moved out and back.

The search cuts gaps greedily in several styles, takes back cuts that are not needed, reorders steps, and improves the
schedule by random changes. If no schedule fits, the search goes on from the lowest one in small steps. At the end, a
solver may lower the cost of a small program. The result is the cheapest schedule that fits the budget.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.library import call, random_state
from memwatch.planner.recompute.reorder import reorder
from memwatch.planner.recompute.retention import cheaper_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from numpy.typing import NDArray

    from memwatch.planner.graph import Graph, IntArray
    from memwatch.planner.recompute.model import Model
    from memwatch.planner.request import Clock

    Seeds: TypeAlias = Callable[[int], list[IntArray]]


# The functions up to `polish` call the compiled kernels, which change a `Draft` in place.
class Draft(NamedTuple):
    """A schedule: the first ``size[0]`` tokens. The rest of the arrays is room to grow."""

    tokens: IntArray
    ids: IntArray  # number of every step; it stays the same when other steps are added or removed
    size: IntArray


def new_draft(room: int) -> Draft:
    """Return an empty schedule with room for so many steps."""
    return Draft(np.empty(room, np.int64), np.empty(room, np.int64), np.zeros(1, np.int64))


def load_tokens(draft: Draft, tokens: IntArray) -> None:
    """Replace the schedule by these tokens and number its steps."""
    draft.size[0] = len(tokens)
    draft.tokens[: len(tokens)] = tokens
    draft.ids[: len(tokens)] = np.arange(len(tokens))


class Work(NamedTuple):
    """Working memory of a sweep, which visits the steps from the last to the first."""

    wanted: IntArray  # buffer -> version that the visited steps need, -1: none
    until: IntArray  # buffer -> last step of the allocation that the sweep is in
    host: IntArray  # buffer -> version that the visited reloads need outside, -1: none
    live: IntArray  # step -> bytes alive while it runs
    first: IntArray  # op -> step that computes it first
    left: IntArray  # op -> its computations in the steps not visited; only counted if some op writes something once


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


def sweep(model: Model, draft: Draft, work: Work) -> int:
    """Write the bytes alive during every step to ``work.live``; return the peak (bytes).

    The result is -1 if the schedule does not compute the same as the program.
    """
    return int(call("sweep_schedule", model, draft, work))


def duration(model: Model, draft: Draft) -> float:
    """Return the time from the first step to the last, in the unit of the ops' costs.

    One copy engine runs while ops compute. The copy of a move out starts after the buffer's last use before the step of
    the move, and must have ended at this step. The copy of a move back starts at its step, and must have ended at the
    buffer's next use.
    """
    return float(call("duration_of", model, draft, returns=ctypes.c_double))


class Style(NamedTuple):
    """Settings of the greedy search."""

    budget: int  # bytes
    area_power: float  # score = overflow removed ** area_power / cost
    noise: float  # scores are multiplied by 1 + noise * uniform(0, 1)
    limit: int  # the most ops one cut may add
    shortlist: int  # how many cuts are tried out per step
    max_cuts: int
    spread: bool  # make each cut in all repeated blocks at once
    random: NDArray[np.uint64]  # random state


def fit(model: Model, draft: Draft, style: Style) -> int:
    """Cut gaps until the schedule fits the budget or no cut helps; return the peak (bytes).

    Args:
        model: the program.
        draft: the schedule, changed in place; its spare room limits how long it may grow.
        style: the budget, and how to choose.
    """
    return int(call("fit_schedule", model, draft, style))


def prune(model: Model, draft: Draft, budget: int, rank: IntArray) -> None:
    """Remove every recompute and move that the budget does not need.

    Args:
        model: the program.
        draft: a schedule that fits the budget, changed in place.
        budget: bytes it may use.
        rank: the steps in the order in which they are tried.
    """
    call("prune_schedule", model, draft, budget, rank)


class Effort(NamedTuple):
    """Length and width of the polish."""

    budget: int  # bytes
    rounds: int
    warmth: float  # a schedule that costs more by up to this share may be accepted; the caller lowers it to 0
    limit: int  # the most ops one cut may add
    total_cost: float  # of the program
    random: NDArray[np.uint64]  # random state


def polish(model: Model, draft: Draft, effort: Effort) -> None:
    """Replace a schedule by a cheaper one within the budget or, while none fits, by one closer to it.

    This is a large-neighbourhood search. Each round undoes some cuts, moves some steps, makes the schedule fit again
    greedily, and keeps it if it is cheaper.

    Args:
        model: the program.
        draft: the best schedule known, replaced by a better one; its spare room limits the length.
        effort: the budget, and how long to search.
    """
    call("polish_schedule", model, draft, effort)


# (area_power, limit): how the greedy search weighs bytes against cost, and how many ops one cut may add. A guess
_STYLES = ((1.0, 60), (1.0, 12), (0.5, 60), (2.0, 60))
# The constants below are guesses.
_TIGHTER = (
    0.9  # one more search aims at this share of the budget, and takes back the cuts that are not needed
)
_BLOCKS = 3  # if at least so many blocks are equal, each cut is also tried in all of them at once
_SEEDS_TRIED = 3  # schedules that the search starts from: the cheapest that fit, and as many that do not
_STEPWISE = 0.02  # share of the peak by which one step of `_lower_peak_stepwise` lowers it
_MOST_STEPWISE = 12  # steps of `_lower_peak_stepwise`
_STEPS_DOWN = (0.02, 0.05, 0.01, 0.035, 0.08, 0.12)  # shares of the peak that `_step_down` tries
_MOST_STEPS_DOWN = 24  # searches in one call of `_step_down`
# the largest programs (ops) for each method
_LARGEST_CAREFUL = 500
_LARGEST_STYLED = 5_000
_LARGEST_REORDER = 2_000
_LARGEST_REORDER_TWICE = 500
_LARGEST_EXACT = 100
_LARGEST_PRUNED_WHOLE = 4_000  # steps; longer schedules are pruned in pieces
_PIECE = 200  # steps
_ROOM_PER_OP = 12  # most steps of a schedule, per op of the program
_CUTS_PER_CALL = 200  # cuts between two checks of the clock
_WARMTH = 0.01  # a share of the cost: how much worse a random move may be at the start


@dataclass(frozen=True, slots=True, eq=False)
class PricedSchedule:
    """A schedule with its price.

    Attributes:
        tokens: the steps, as `recompute.model` numbers them.
        peak_bytes: its peak (bytes), external buffers included.
        duration: its cost, recomputes and moves included, in the unit of the ops' costs.
    """

    tokens: IntArray
    peak_bytes: int
    duration: float

    def key(self, budget_bytes: int) -> tuple[float, float, int]:
        """Return a sort key: schedules that fit the budget first, then the cheap ones, then low peaks."""
        return max(self.peak_bytes - budget_bytes, 0), self.duration, self.peak_bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """The budget and the limits of a search.

    Attributes:
        budget_bytes: bytes a schedule may use, external buffers included.
        keeps_order: whether the first computations of the ops keep their order. It must be the value that the model was
            made with.
        seed: seed of the random moves.
        clock: when to stop. The search of a program with a few hundred ops ends before that, so its plan depends on the
            seed only.
    """

    budget_bytes: int
    keeps_order: bool
    seed: int
    clock: Clock


class RecomputeSearch:
    """One search for schedules within one budget.

    Args:
        graph: the program.
        model: its recompute problem.
        terms: the budget and the limits.
    """

    def __init__(self, graph: Graph, model: Model, terms: Terms) -> None:
        self._graph = graph
        self._model = model
        self._terms = terms
        self._budget = terms.budget_bytes
        self._keeps_order = terms.keeps_order
        self._clock = terms.clock

    def run(self, starts: Iterable[IntArray], seeds: Seeds = lambda budget_bytes: []) -> PricedSchedule:
        """Return the cheapest schedule that fits, or the lowest schedule if none fits.

        Args:
            starts: orders of the program, each op once.
            seeds: returns, for a budget (bytes), schedules to start from that compute some ops again. Invalid
                schedules are left out.
        """
        priced_starts = [self.evaluate(tokens) for tokens in starts]
        for start in sorted(priced_starts, key=lambda one: one.peak_bytes):
            if start.peak_bytes <= self._budget:
                return start
        best = self._search(priced_starts, seeds)
        if best.peak_bytes <= self._budget:
            return best
        return self._lower_peak_stepwise(self._step_down(best, priced_starts, seeds))

    def _search(self, priced_starts: list[PricedSchedule], seeds: Seeds) -> PricedSchedule:
        found = (
            self._fit_in_styles(priced_starts)
            + self._fit_blocks(priced_starts)
            + self._fit_seeds(seeds(self._budget))
        )
        best = self._best(found)
        if best.peak_bytes > self._budget and not self._clock.is_over():
            best = self._best([best, self.fit(best.tokens, 1.0, self._graph.num_ops)])
        if self._graph.num_ops <= _LARGEST_REORDER:
            best = self.reorder_and_prune(best)
        best = self.polish(best)
        if self._graph.num_ops <= _LARGEST_REORDER_TWICE:
            best = self.reorder_and_prune(best)
        return self.solve(best) if self._graph.num_ops <= _LARGEST_EXACT else best

    def _step_down(
        self, best: PricedSchedule, priced_starts: list[PricedSchedule], seeds: Seeds
    ) -> PricedSchedule:
        """Return the lowest schedule of searches whose budget is a little below the lowest known peak.

        With a budget far below every known schedule, the greedy search values all cuts alike. A target a little below
        the lowest known peak guides it better.
        """
        steps = iter(_STEPS_DOWN)
        for _ in range(_MOST_STEPS_DOWN):
            share = next(steps, None)
            if share is None or best.peak_bytes <= self._budget or self._clock.is_over():
                break
            target = int(best.peak_bytes * (1 - share))
            found = self.prune(self._with_budget(target)._search(priced_starts, seeds))
            if found.peak_bytes < best.peak_bytes:
                best, steps = found, iter(_STEPS_DOWN)  # try all steps again from the new peak
        return best

    def _with_budget(self, budget_bytes: int) -> RecomputeSearch:
        terms = replace(self._terms, budget_bytes=budget_bytes)
        return RecomputeSearch(self._graph, self._model, terms)

    def _lower_peak_stepwise(self, best: PricedSchedule) -> PricedSchedule:
        """Return a schedule with a lower peak, reached from this one in small steps.

        Unlike `_step_down`, it goes on from the given schedule instead of starting again.
        """
        for _ in range(_MOST_STEPWISE):
            if best.peak_bytes <= self._budget or self._clock.is_over():
                break
            target = max(self._budget, int(best.peak_bytes * (1 - _STEPWISE)))
            step = self._with_budget(target)
            lower = step.fit(best.tokens, 1.0, self._graph.num_ops)
            if lower.peak_bytes > target and self._graph.num_ops <= _LARGEST_REORDER:
                lower = step.polish(step.reorder_and_prune(lower))
            if lower.peak_bytes >= best.peak_bytes:
                break
            best = lower
        return best

    def _fit_in_styles(self, priced_starts: list[PricedSchedule]) -> list[PricedSchedule]:
        """Return the starts, and the results of the greedy search for each start and style."""
        styles = _STYLES if self._graph.num_ops <= _LARGEST_STYLED else _STYLES[:1]
        found = list(priced_starts)
        for power, limit in styles:
            for one in priced_starts:
                if len(found) > len(priced_starts) and self._clock.is_over():
                    return found
                found.append(self.fit(one.tokens, power, limit))
        return found

    def _fit_blocks(self, priced_starts: list[PricedSchedule]) -> list[PricedSchedule]:
        """Return the results of two more searches for each start.

        One aims below the budget, and then takes back the cuts that are not needed. The other makes each cut in all
        repeated blocks at once. Both find schedules that the greedy choice of single cuts does not reach.
        """
        if self._graph.num_ops > _LARGEST_CAREFUL:
            return []
        found: list[PricedSchedule] = []
        tighter = self._with_budget(int(self._budget * _TIGHTER))
        is_repeated = np.bincount(self._model.kind).max(initial=0) >= _BLOCKS
        for one in priced_starts:
            if self._clock.is_over():
                break
            found.append(self.prune(tighter.fit(one.tokens, 1.0, 60)))
            if is_repeated and not self._clock.is_over():
                found.append(self.fit(one.tokens, 1.0, 60, spread=True))
        return found

    def _fit_seeds(self, seeds: list[IntArray]) -> list[PricedSchedule]:
        """Return the cheapest seeds that fit, pruned, and the lowest other seeds, with gaps cut until they fit."""
        valid = [one for one in map(self._price, seeds) if one is not None]
        valid.sort(key=lambda one: one.key(self._budget))
        fitting = [one for one in valid if one.peak_bytes <= self._budget]
        found = valid[:1]  # a program that is too large for the time limit gets at least this one
        for one in [*fitting[:_SEEDS_TRIED], *valid[len(fitting) :][:_SEEDS_TRIED]]:
            if self._clock.is_over():
                break
            found.append(self.prune(one) if one.peak_bytes <= self._budget else self.fit(one.tokens, 1.0, 60))
        return found

    def evaluate(self, tokens: IntArray) -> PricedSchedule:
        """Return a valid schedule with its price."""
        found = self._price(tokens)
        assert found is not None, "the search met a schedule that is not valid"
        return found

    def _price(self, tokens: IntArray) -> PricedSchedule | None:
        draft = self._draft(tokens, 0)
        peak = int(sweep(self._model, draft, new_work(self._model, len(tokens))))
        return None if peak < 0 else PricedSchedule(tokens, peak, float(duration(self._model, draft)))

    def fit(self, tokens: IntArray, area_power: float, limit: int, *, spread: bool = False) -> PricedSchedule:
        """Return the schedule with gaps cut greedily until it fits, pruned afterwards.

        Args:
            tokens: the schedule to start from.
            area_power: weight of the bytes removed from the peak against the cost; see `Style`.
            limit: how many ops one cut may add.
            spread: make the same cut in all repeated blocks at once. Large programs always do.
        """
        num_ops = self._graph.num_ops
        draft = self._draft(tokens, _ROOM_PER_OP * num_ops + 1_000)
        # a call of the kernel cannot be interrupted, so it makes few cuts, and the clock is checked between the calls
        cuts = min(_CUTS_PER_CALL, max(2, 200_000 // max(num_ops, 1)))
        random = random_state(self._terms.seed)
        shortlist, spread = (24, spread) if num_ops <= _LARGEST_CAREFUL else (4, True)
        style = Style(self._budget, area_power, 0.0, min(limit, num_ops), shortlist, cuts, spread, random)
        before = -1
        while draft.size[0] != before and not (before >= 0 and self._clock.is_over()):
            before = int(draft.size[0])
            if fit(self._model, draft, style) <= self._budget:
                break
        return self.prune(self.evaluate(_tokens(draft)))

    def prune(self, found: PricedSchedule) -> PricedSchedule:
        """Return the schedule with only the recomputes and moves that the budget needs.

        They are removed in two orders, the most expensive first and the last first. The cheaper result wins.
        """
        if found.peak_bytes > self._budget:
            return found
        if len(found.tokens) > _LARGEST_PRUNED_WHOLE:
            return self._prune_from_the_end(found)
        last_first = np.arange(len(found.tokens))[::-1].copy()
        price = np.concatenate((self._model.cost, np.full(2 * self._model.num_buffers, np.inf)))
        ranks = [last_first, np.argsort(-price[found.tokens], kind="stable")]
        results = []
        for rank in ranks if self._graph.num_ops <= _LARGEST_REORDER else ranks[:1]:
            draft = self._draft(found.tokens, 0)
            prune(self._model, draft, self._budget, rank)
            results.append(self.evaluate(_tokens(draft)))
        return self._best([found, *results])

    def _prune_from_the_end(self, found: PricedSchedule) -> PricedSchedule:
        """Return a long schedule pruned piece by piece, from its end, as far as the time allows."""
        draft = self._draft(found.tokens, 0)
        end = int(draft.size[0])
        while end > 0 and not self._clock.is_over():
            end = min(end, int(draft.size[0]))
            piece = np.arange(max(0, end - _PIECE), end)[::-1].copy()
            prune(self._model, draft, self._budget, piece)
            end -= _PIECE
        return self._best([found, self.evaluate(_tokens(draft))])

    def reorder_and_prune(self, found: PricedSchedule) -> PricedSchedule:
        """Return the schedule in an order with a lower peak, pruned: lower peaks leave room in the budget."""
        if self._keeps_order or self._clock.is_over():
            return found
        moves = 100 * len(found.tokens)
        tokens = reorder(self._graph, found.tokens, self._terms.seed, moves, self._clock.share(0.3))
        if tokens is None:
            return found
        better = self.evaluate(tokens)
        if better.peak_bytes > self._budget:
            better = self.fit(better.tokens, 1.0, 60)
        return self._best([found, self.prune(better)])

    def polish(self, found: PricedSchedule) -> PricedSchedule:
        """Return the best schedule after many random changes, each followed by a repair.

        As in simulated annealing, a change that costs a little more may be kept, early more often than late. The number
        of rounds depends on the size of the program.
        """
        num_ops = self._graph.num_ops
        rounds = int(min(1_500, 200 + 30 * num_ops, 2_500_000 / max(num_ops, 1) ** 2))
        chunk = max(1, min(rounds, 2_000 // max(num_ops, 1)))
        draft = self._draft(found.tokens, _ROOM_PER_OP * num_ops + 1_000)
        total_cost = float(self._model.cost.sum())
        for turn in range(-(-rounds // chunk)):
            if self._clock.is_over():
                break
            warmth = _WARMTH * (1 - turn * chunk / rounds)
            random = random_state((self._terms.seed * 1_000_003 + turn) % 2**32)
            effort = Effort(self._budget, chunk, warmth, min(60, num_ops), total_cost, random)
            polish(self._model, draft, effort)
        return self._best([found, self.evaluate(_tokens(draft))])

    @staticmethod
    def _draft(tokens: IntArray, spare: int) -> Draft:
        draft = new_draft(len(tokens) + spare)
        load_tokens(draft, tokens)
        return draft

    def solve(self, found: PricedSchedule) -> PricedSchedule:
        """Return a cheaper schedule in the same order, if the solver CP-SAT is installed and finds one."""
        if (
            found.peak_bytes > self._budget
            or found.duration <= self._model.cost.sum()
            or self._clock.is_over()
        ):
            return found
        tokens = cheaper_in_order(self._graph, found.tokens, self._budget, self._clock)
        return found if tokens is None else self._best([found, self.evaluate(tokens)])

    def _best(self, found: list[PricedSchedule]) -> PricedSchedule:
        return min(found, key=lambda one: one.key(self._budget))


def _tokens(draft: Draft) -> IntArray:
    return np.array(draft.tokens[: draft.size[0]])
