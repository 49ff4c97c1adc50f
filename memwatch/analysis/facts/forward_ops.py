"""Forward ops: which op made the node of autograd's graph that an op of backward runs, or that saved a tensor.

An op made a node if autograd's newest sequence number moved when it ran. A backward with `create_graph=True` makes
nodes for another one: of these the newest number is recorded apart, for an op in backward carries that of the node run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import ACCESSES, BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_OUTPUT: Final = ACCESSES.index("output")
_AT_ONCE: Final = 1 << 20
"""Rows of `uses` that are looked at together: all of them would take as much memory again."""


class _Newest(NamedTuple):
    """The newest sequence number while each op ran of which that is known, in the order of the ops."""

    op: IntArray
    sequence: IntArray


def op_of_node(capture: Capture, sequence: IntArray) -> IntArray:
    """Return the op that ran while the node with each sequence number was the newest; -1 if none."""
    newest = _newest(capture, 0, capture.rows("ops"))
    if not len(newest.op):
        return np.full(len(sequence), NONE, dtype=np.int64)
    numbers, first = np.unique(newest.sequence, return_index=True)
    position = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    return np.where(numbers[position] == sequence, newest.op[first[position]], NONE)


def maker_of_node(capture: Capture, start: int = 0, end: int | None = None) -> IntArray:
    """Return, for each backward op among some, the op among them that made the node that it runs; -1 for all others.

    Args:
        capture: what was recorded.
        start: the first of these ops, from which the result counts.
        end: the op after the last one; None for the end of the capture.
    """
    ops = {name: capture.tables["ops"][name][start:end] for name in ("sequence", "phase")}
    sequence, count = ops["sequence"], len(ops["sequence"])
    newest = _newest(capture, start, start + count)
    if not len(newest.op):
        return np.full(count, NONE, dtype=np.int64)
    running = np.maximum.accumulate(newest.sequence)
    moved = np.concatenate([[True], running[1:] > running[:-1]])
    numbers, made = newest.sequence[moved], newest.op[moved] - start
    position = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    found = (ops["phase"] == BACKWARD) & (sequence != NONE) & (numbers[position] == sequence)
    return np.where(found & (made[position] < np.arange(count)), made[position], NONE)


def forward_op_of(capture: Capture, start: int = 0, end: int | None = None) -> IntArray:
    """Return the same, but no op of a backward: what that made is put down to the op whose node it ran.

    So is what a backward of a backward runs. What is recomputed in backward has a place of its own.
    """
    made = maker_of_node(capture, start, end)
    phase = capture.tables["ops"]["phase"][start:end]
    while True:
        again = np.flatnonzero((made != NONE) & (phase[made] == BACKWARD))
        if not len(again):
            return made
        made[again] = made[made[again]]


def _newest(capture: Capture, start: int, end: int) -> _Newest:
    ops, nodes = capture.tables["ops"], capture.tables["nodes"]
    number = np.arange(start, end)
    is_one = (ops["phase"][start:end] != BACKWARD) & (ops["sequence"][start:end] != NONE)
    forward = number[is_one & _is_given_memory(capture, start, end)]
    inside = (nodes["op"] >= start) & (nodes["op"] < end)
    op = np.concatenate([forward, nodes["op"][inside]])
    sequence = np.concatenate([ops["sequence"][forward], nodes["sequence"][inside]])
    order = np.argsort(op, kind="stable")
    return _Newest(op[order], sequence[order])


def _is_given_memory(capture: Capture, start: int, end: int) -> NDArray[np.bool_]:
    """Return whether each op is given any tensor: one that is not makes no node, and the newest may be a view's."""
    uses, given = capture.tables["uses"], np.zeros(end, dtype=bool)
    for first in range(0, len(uses["op"]), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        op = uses["op"][part][uses["access"][part] != _OUTPUT]
        given[op[op < end]] = True
    return given[start:]
