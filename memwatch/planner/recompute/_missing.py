"""Kernel: which ops must run again to have a version of a buffer at a step where it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner._numba import compiled
from memwatch.planner.recompute._events import left_before, wanted_at

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._events import Events
    from memwatch.planner.recompute.model import Model

# what to do about an input that is gone as well, but could have been kept
RECOMPUTE, KEEP, KEEP_IF_LATE = 0, 1, 2


class Search(NamedTuple):
    """Working memory of a search for missing ops."""

    ops: IntArray  # the ops found
    stamp: IntArray  # op -> number of the search that found it
    stack: IntArray  # ops whose inputs are still to be looked at
    kept: IntArray  # buffers that are to live on instead, since which step: rows
    number: IntArray  # number of the current search; how many rows of `kept` it filled


@compiled
def new_search(num_ops: int) -> Search:
    """Allocate the working memory."""
    return Search(
        np.empty(num_ops + 1, np.int64), np.full(num_ops, -1, np.int64),
        np.empty(num_ops + 1, np.int64), np.empty((num_ops + 1, 2), np.int64), np.zeros(2, np.int64),
    )  # fmt: skip


@compiled
def _add_unit(
    model: Model, search: Search, buffer: int, version: int, found: int, waiting: int
) -> tuple[int, int]:
    """Add the producer of a buffer and its mutations up to a version; (-1, -1) if one may not run again."""
    if model.producer[buffer] < 0:
        return -1, -1
    for position in range(version + 1):
        op = model.producer[buffer]
        if position > 0:
            op = model.writer[model.writer_ptr[buffer] + position - 1]
        if search.stamp[op] == search.number[0]:
            continue
        if model.again[op] == 0:
            return -1, -1
        search.stamp[op] = search.number[0]
        search.ops[found] = op
        search.stack[waiting] = op
        found += 1
        waiting += 1
    return found, waiting


@compiled
def _add_gone(
    model: Model, events: Events, search: Search, buffer: int, version: int, step: int, peak_step: int, mode: int,
    found: int, waiting: int,
) -> tuple[int, int]:  # fmt: skip
    """Add what brings one input back, unless it is alive or will be kept alive."""
    if wanted_at(model, events, buffer, step) == version:
        return found, waiting
    left, since = left_before(model, events, buffer, step)
    if left != version or (mode == RECOMPUTE or (mode == KEEP_IF_LATE and since <= peak_step)):
        more, waiting_more = _add_unit(model, search, buffer, version, found, waiting)
        if more >= 0 or left != version:
            return more, waiting_more
    # it cannot be computed again, or is not to be: it is kept
    row = search.number[1]
    if row < len(search.kept):
        search.kept[row, 0], search.kept[row, 1] = buffer, since
        search.number[1] += 1
    return found, waiting


@compiled
def missing_ops(
    model: Model, events: Events, search: Search, buffer: int, version: int, step: int, peak_step: int, mode: int,
    limit: int,
) -> int:  # fmt: skip
    """Find the ops to run again just before a step, in program order.

    Args:
        model: the program.
        events: touches of the current schedule.
        search: working memory; holds the ops afterwards.
        buffer: the buffer wanted.
        version: its version.
        step: where it is wanted.
        peak_step: the step to be relieved.
        mode: `RECOMPUTE`, `KEEP` or `KEEP_IF_LATE`.
        limit: the most ops to add.

    Returns:
        How many ops, or -1 when it is impossible or takes more than `limit`.
    """
    search.number[0] += 1
    search.number[1] = 0
    found, waiting = _add_unit(model, search, buffer, version, 0, 0)
    while waiting > 0:
        if found > limit:
            return -1
        waiting -= 1
        op = search.stack[waiting]
        for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
            # a mutation runs again on a buffer made again, never on the one the program keeps
            written, before = model.write[entry], model.write_version[entry] - 1
            found, waiting = _add_unit(model, search, written, before, found, waiting)
            if found < 0:
                return -1
        for entry in range(model.read_ptr[op], model.read_ptr[op + 1]):
            found, waiting = _add_gone(
                model, events, search, model.read[entry], model.read_version[entry], step, peak_step, mode,
                found, waiting,
            )  # fmt: skip
            if found < 0:
                return -1
    if found > limit:
        return -1
    search.ops[:found].sort()
    return found
