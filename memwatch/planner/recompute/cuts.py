"""Kernels: the gaps at a step, and the two ways to cut one: compute the buffer again, or move it out and back.

A gap is a stretch of steps between two uses of a buffer, during which the buffer lies idle. To compute the buffer
again, its op needs its inputs. If an input was freed, the op that makes it has to run again too, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.recompute.draft import Draft, Events, first_at, insert_tokens, left_before, wanted_at

if TYPE_CHECKING:
    from memwatch.planner.csr import IntArray
    from memwatch.planner.recompute.model import Model


# columns of a table of cuts: the fields of a `Cut`
BUFFER, VERSION, SINCE, UNTIL, WAY, PEAK_STEP = 0, 1, 2, 3, 4, 5


class Scene(NamedTuple):
    """The schedule that is searched for cuts, with its events and live bytes."""

    draft: Draft
    events: Events  # which steps use which buffer
    search: OpSearch  # working memory
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
        row[BUFFER] = buffer
        row[VERSION] = version
        row[SINCE] = since
        row[PEAK_STEP] = step
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
    stall = max(left, 0.0)
    left = model.move_cost[cut.buffer]
    in_before = cut.until
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
        insert_tokens(target, in_before, token)
        token[0] = model.num_ops + cut.buffer
        insert_tokens(target, out_before, token)
        return True, price
    found = missing_ops(model, scene.events, scene.search, cut, limit)
    if found < 0:
        return False, 0.0
    insert_tokens(target, cut.until, scene.search.ops[:found])
    return True, price_of(model, scene.search)


# Ways to cut a gap. The first three run ops again. They differ in the inputs of these ops that were freed. RECOMPUTE
# computes all these inputs again. KEEP_IF_LATE keeps an input alive instead if it is used after the peak. KEEP keeps
# all of them alive. MOVE moves the buffer out and back.
RECOMPUTE, KEEP_IF_LATE, KEEP, MOVE = 0, 1, 2, 3


class Cut(NamedTuple):
    """A cut: `buffer` is idle after step `since` and before step `until`, which wants its `version`."""

    buffer: int
    version: int
    since: int
    until: int
    way: int
    peak_step: int  # step at which the cut has to lower live bytes


class OpSearch(NamedTuple):
    """Working memory of a search for missing ops."""

    ops: IntArray  # the ops found
    stamp: IntArray  # op -> number of the search that found it
    stack: IntArray  # ops whose inputs are still to be examined
    kept: IntArray  # rows: a buffer that is kept instead, and the step since which it is idle
    number: IntArray  # of the current search
    counts: IntArray  # how many: ops, ops on the stack, rows of `kept`


OPS, WAITING, KEPT = 0, 1, 2


def new_op_search(num_ops: int) -> OpSearch:
    """Return new working memory."""
    return OpSearch(
        np.empty(num_ops + 1, np.int64),
        np.full(num_ops, -1, np.int64),
        np.empty(num_ops + 1, np.int64),
        np.empty((num_ops + 1, 2), np.int64),
        np.zeros(1, np.int64),
        np.zeros(3, np.int64),
    )


def _may_run_again(model: Model, op: int, buffer: int) -> bool:
    """Return True if an op may run again to make or write a buffer."""
    for entry in range(model.write_ptr[op], model.write_ptr[op + 1]):
        if model.once[entry] and model.write[entry] == buffer:
            return False
    return bool(model.again[op])


def _add_unit(model: Model, search: OpSearch, buffer: int, version: int) -> bool:
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


def _add_input(model: Model, events: Events, search: OpSearch, wanted: tuple[int, int], cut: Cut) -> bool:
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


def missing_ops(model: Model, events: Events, search: OpSearch, cut: Cut, limit: int) -> int:
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
            if not _add_input(model, events, search, wanted, cut):
                return -1
    found = search.counts[OPS]
    if found > limit:
        return -1
    search.ops[:found].sort()
    return int(found)


def price_of(model: Model, search: OpSearch) -> float:
    """Return the cost of the ops found."""
    price = 0.0
    for position in range(search.counts[OPS]):
        price += model.cost[search.ops[position]]
    return price
