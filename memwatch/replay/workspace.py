"""Workspace: bytes that a call takes from the allocator and gives back before it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.blocks import block_at, pair_events
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.blocks import Blocks
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_SLACK_NS: Final = 1_000
"""Ops and allocations carry times of two clocks, which agree up to about this much. The recorder's own work around
an op, during which nothing is allocated for the program, takes many times longer."""


def workspaces(capture: Capture, device: str, ops: IntArray, made_bytes: IntArray) -> IntArray:
    """Return the workspace of ops: the most bytes they held at once, less the storages they made.

    Only blocks that were allocated while the op ran count. Blocks that the recorder allocated around it do not,
    nor does the tensor into which the dispatcher wraps a number among the arguments.

    Args:
        capture: what was recorded; without allocator events every workspace is 0.
        device: device whose blocks count, such as `cpu`.
        ops: numbers of the ops, ascending.
        made_bytes: bytes of the storages that each op made.

    Returns:
        Bytes, one per op.
    """
    blocks = pair_events(capture)
    table = capture.tables["ops"]
    row = np.searchsorted(table["op"], ops)
    shift_ns = _shift_ns(capture, blocks)
    start_ns = table["start_ns"][row] - _SLACK_NS - shift_ns
    end_ns = table["end_ns"][row] + _SLACK_NS - shift_ns
    names = np.array(capture.text(blocks.device), dtype=object)
    chosen = np.flatnonzero(names == device) if len(names) else np.empty(0, dtype=np.int64)
    position = np.searchsorted(start_ns, blocks.birth_ns[chosen], side="right") - 1
    inside = (position >= 0) & (blocks.birth_ns[chosen] <= end_ns[np.maximum(position, 0)])
    chosen, position = chosen[inside], position[inside]
    death = blocks.death_ns[chosen]
    freed = (death >= 0) & (death <= end_ns[position])
    call = np.concatenate([position, position[freed]])
    order = np.concatenate([blocks.birth_order[chosen], blocks.death_order[chosen][freed]])
    change = np.concatenate([blocks.nbytes[chosen], -blocks.nbytes[chosen][freed]])
    by_time = np.lexsort((order, call))
    held = _peaks(call[by_time], change[by_time], len(ops))
    extra: IntArray = np.maximum(held - made_bytes, 0)
    return extra


def _peaks(call: IntArray, change: IntArray, num_calls: int) -> IntArray:
    """Return the highest running sum of the changes of each call."""
    peaks = np.zeros(num_calls, dtype=np.int64)
    level = np.cumsum(change)
    first = np.flatnonzero(np.diff(call, prepend=-1))
    before = np.repeat(level[first] - change[first], np.diff(first, append=len(call)))
    np.maximum.at(peaks, call, level - before)
    return peaks


def _shift_ns(capture: Capture, blocks: Blocks) -> int:
    """Return how far the allocator's clock must be put forward to agree with the clock of the ops.

    A storage that an op made was allocated while the op ran, so every such pair bounds the shift from both sides.
    """
    births, ops = capture.tables["births"], capture.tables["ops"]
    made = np.flatnonzero((births["op"] != NONE) & (births["address"] != 0) & (births["nbytes"] > 0))
    block = block_at(blocks, births["address"][made], births["time_ns"][made])
    if not len(blocks):
        return 0
    same = (block != NONE) & (blocks.nbytes[np.maximum(block, 0)] >= births["nbytes"][made])
    made, block = made[same], block[same]
    if not len(made):
        return 0
    row = np.searchsorted(ops["op"], births["op"][made])
    born_ns = blocks.birth_ns[block]
    least, most = ops["start_ns"][row] - born_ns, ops["end_ns"][row] - born_ns
    # the extremes are left out: a storage may come from unrecorded code before the op that is said to make it
    low, high = np.quantile(least, 0.98), np.quantile(most, 0.02)
    return int((low + high) / 2) if low > high else int(min(max(0, low), high))
