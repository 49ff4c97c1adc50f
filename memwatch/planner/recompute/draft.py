"""Schedules that kernels change in place: price one, cut gaps until it fits, take cuts back, polish it.

A gap is a stretch of steps between two uses of a buffer, during which the buffer lies idle. A cut computes the buffer
again before its next use, or moves it out and back.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.native.calls import call

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model


class Draft(NamedTuple):
    """A schedule: the first ``size[0]`` tokens. The rest of the arrays is room to grow."""

    tokens: IntArray
    ids: IntArray  # number of every step; it stays while other steps come and go
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
        np.empty(model.num_buffers, np.int64),
        np.empty(model.num_buffers, np.int64),
        np.empty(model.num_buffers, np.int64),
        np.empty(room + 2, np.int64),
        np.empty(model.num_ops, np.int64),
        np.empty(model.num_ops, np.int64),
    )


def sweep(model: Model, draft: Draft, work: Work) -> int:
    """Write the bytes alive during every step to ``work.live``; return the peak (bytes).

    Returns:
        The peak (bytes); -1 if the schedule does not compute the same as the program.
    """
    return int(call("sweep_schedule", model, draft, work))


def duration(model: Model, draft: Draft) -> float:
    """Return the time from the first step to the last, in the unit of the ops' costs.

    One copy engine runs while ops compute. A move out starts after the last use before its step and must
    have ended at that step. A move back starts at its step and must have ended at the first use.
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
    spread: bool  # make the same cut in all repeated blocks at once
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
    warmth: float  # a schedule dearer by this share of the cost may be accepted; the share falls to 0
    limit: int  # the most ops one cut may add
    total_cost: float  # of the program
    random: NDArray[np.uint64]  # random state


def polish(model: Model, draft: Draft, effort: Effort) -> None:
    """Replace a schedule by a cheaper one within the budget or, while none fits, by one closer to it.

    This is a large-neighbourhood search: undo some cuts, move some steps, repair greedily, keep what is cheaper.

    Args:
        model: the program.
        draft: the best schedule known, replaced by a better one; its spare room limits the length.
        effort: the budget, and how long to search.
    """
    call("polish_schedule", model, draft, effort)
