"""Kernel: a schedule that the other kernels change in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray


class Draft(NamedTuple):
    """A schedule: the first ``size[0]`` tokens. The rest of the arrays is room to grow."""

    tokens: IntArray
    ids: IntArray  # number of every step; it stays while other steps come and go
    size: IntArray


def new_draft(room: int) -> Draft:
    """Return an empty schedule with room for so many steps."""
    return Draft(np.empty(room, np.int64), np.empty(room, np.int64), np.zeros(1, np.int64))


def load(draft: Draft, tokens: IntArray) -> None:
    """Replace the schedule by these tokens and number its steps."""
    draft.size[0] = len(tokens)
    draft.tokens[: len(tokens)] = tokens
    draft.ids[: len(tokens)] = np.arange(len(tokens))


def copy(source: Draft, target: Draft) -> None:
    """Make the target equal to the source."""
    size = source.size[0]
    target.size[0] = size
    target.tokens[:size] = source.tokens[:size]
    target.ids[:size] = source.ids[:size]


def insert(draft: Draft, at: int, tokens: IntArray) -> None:
    """Insert tokens before a step."""
    size, count = draft.size[0], len(tokens)
    for position in range(size - 1, at - 1, -1):
        draft.tokens[position + count] = draft.tokens[position]
        draft.ids[position + count] = draft.ids[position]
    draft.tokens[at : at + count] = tokens
    draft.ids[at : at + count] = -1
    draft.size[0] = size + count


def remove(draft: Draft, first: int, second: int) -> None:
    """Remove one step, or two (`second` is -1 for one)."""
    at = 0
    for position in range(draft.size[0]):
        if position not in (first, second):
            draft.tokens[at], draft.ids[at] = draft.tokens[position], draft.ids[position]
            at += 1
    draft.size[0] = at
