"""Kernel: the ops that must run again so that a version of a buffer is there at a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.recompute._events import left_before, wanted_at

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute._events import Events
    from memwatch.planner.recompute.model import Model

# Ways to cut a gap. The first three run ops again and differ in the inputs of these ops that are no longer there:
# all of them are computed again; those used after the peak are kept instead; or all are kept. MOVE moves the buffer.
RECOMPUTE, KEEP_IF_LATE, KEEP, MOVE = 0, 1, 2, 3


class Cut(NamedTuple):
    """A cut: `buffer` is idle after step `since` and before step `until`, which wants its `version`."""

    buffer: int
    version: int
    since: int
    until: int
    way: int
    peak_step: int  # step at which the cut has to lower live bytes


class Search(NamedTuple):
    """Working memory of a search for missing ops."""

    ops: IntArray  # the ops found
    stamp: IntArray  # op -> number of the search that found it
    stack: IntArray  # ops whose inputs are still to be examined
    kept: IntArray  # rows: a buffer that is kept instead, and the step since which it is idle
    number: IntArray  # of the current search
    counts: IntArray  # how many: ops, ops on the stack, rows of `kept`


OPS, WAITING, KEPT = 0, 1, 2


def new_search(num_ops: int) -> Search:
    """Return new working memory."""
    return Search(
        np.empty(num_ops + 1, np.int64), np.full(num_ops, -1, np.int64), np.empty(num_ops + 1, np.int64),
        np.empty((num_ops + 1, 2), np.int64), np.zeros(1, np.int64), np.zeros(3, np.int64),
    )  # fmt: skip


def _may_run_again(model: Model, op: int, buffer: int) -> bool:
    """Return True if an op may run again to make or write a buffer."""
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
        if model.once[entry] and model.write[entry] == buffer:
            return False
    return bool(model.again[op])


def _add_unit(model: Model, search: Search, buffer: int, version: int) -> bool:
    """Add the producer of a buffer and its mutations up to a version; return False if one may not run again."""
    if model.producer[buffer] < 0:
        return False
    for position in range(version + 1):
        op = model.producer[buffer]
        if position > 0:
            op = model.writer[model.writer_ptr[buffer] + position - 1]
        if not _may_run_again(model, op, buffer):
            return False
    for position in range(version + 1):
        op = model.producer[buffer]
        if position > 0:
            op = model.writer[model.writer_ptr[buffer] + position - 1]
        if search.stamp[op] != search.number[0]:
            search.stamp[op] = search.number[0]
            search.ops[search.counts[OPS]] = op
            search.stack[search.counts[WAITING]] = op
            search.counts[OPS] += 1
            search.counts[WAITING] += 1
    return True


def _add_gone(model: Model, events: Events, search: Search, wanted: tuple[int, int], cut: Cut) -> bool:
    """Add the ops that make one input (buffer, version), unless it is alive or will be kept; False if impossible."""
    buffer, version = wanted
    if wanted_at(model, events, buffer, cut.until) == version:
        return True
    left, since = left_before(model, events, buffer, cut.until)
    is_kept = cut.way == KEEP or (cut.way == KEEP_IF_LATE and since > cut.peak_step)
    if (left != version or not is_kept) and _add_unit(model, search, buffer, version):
        return True
    if left != version:
        return False
    row = search.counts[KEPT]
    if row < len(search.kept):
        search.kept[row, 0], search.kept[row, 1] = buffer, since
        search.counts[KEPT] += 1
    return True


def missing_ops(model: Model, events: Events, search: Search, cut: Cut, limit: int) -> int:
    """Write the ops to run again just before the end of a cut to ``search.ops``, in program order.

    Returns:
        How many ops they are; -1 if the cut is impossible or takes more than `limit`.
    """
    search.number[0] += 1
    search.counts[:] = 0
    if not _add_unit(model, search, cut.buffer, cut.version):
        return -1
    while search.counts[WAITING] > 0:
        if search.counts[OPS] > limit:
            return -1
        search.counts[WAITING] -= 1
        op = search.stack[search.counts[WAITING]]
        for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
            if model.once[entry]:
                continue
            # a mutation runs again on a buffer that was made again too; on the program's own it would apply twice
            if not _add_unit(model, search, model.write[entry], model.write_version[entry] - 1):
                return -1
        for entry in range(model.read_ptr[op], model.read_ptr[op + 1]):
            wanted = (model.read[entry], model.read_version[entry])
            if not _add_gone(model, events, search, wanted, cut):
                return -1
    found = search.counts[OPS]
    if found > limit:
        return -1
    search.ops[:found].sort()
    return int(found)


def price_of(model: Model, search: Search) -> float:
    """Return the cost of the ops found."""
    price = 0.0
    for position in range(search.counts[OPS]):
        price += model.cost[search.ops[position]]
    return price
