"""Find what made each autograd node, a forward op or a compiled function, and the storages that a backward reads.

An op made a node if autograd's newest sequence number rose while the op ran. The same holds for a view; memwatch
records views only for this purpose. A backward with `create_graph=True` makes nodes for another backward. Their newest
number is in another table, because the row of an op in backward has the number of the node that runs.

A backward reads the tensors that autograd saved, and the tensors that the program's own code passed on. The ops of a
compiled function are not recorded. So its nodes and allocations are found by the times of its calls and by the numbers
of its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, BACKWARD, FORWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_OUTPUT: Final = ACCESSES.index("output")
_AT_ONCE: Final = 1 << 20
"""Rows of `uses` that are read together, because all of them would take much memory. A guess."""


@dataclass(frozen=True)
class Makers:
    """The maker of each of some nodes: either the number of an op or the row of a view in `views`. The other is -1."""

    op: IntArray
    view: IntArray


def op_of_node(capture: Capture, sequence: IntArray) -> IntArray:
    """Return the op that ran first while the node with each sequence number was the newest; -1 if none."""
    return _Nodes(capture, 0, capture.rows("ops")).first_with(sequence).op


def maker_of_node(capture: Capture) -> IntArray:
    """Return, for each backward op, the op that made the node that it runs; -1 for all others."""
    count = capture.rows("ops")
    return _Nodes(capture, 0, count).makers(_nodes_run(capture, 0, count), np.arange(count)).op


def forward_makers(capture: Capture, start: int = 0, end: int | None = None) -> Makers:
    """Return the forward op or view that made the node of each backward op in a range of ops.

    The result never names an op or view of a backward. If a backward made the node (`create_graph=True`), the search
    goes on from the node that this backward ran. An op that a checkpoint computed again may be the maker.

    Args:
        capture: the recorded tables.
        start: the first op of the range.
        end: the op after the last one; None for the end of the capture.
    """
    end = capture.rows("ops") if end is None else end
    ops, views = capture.tables["ops"], capture.tables["views"]
    nodes = _Nodes(capture, start, end)
    made = nodes.makers(_nodes_run(capture, start, end), np.arange(start, end))
    while True:
        by_op, by_view = np.flatnonzero(made.op != NONE), np.flatnonzero(made.view != NONE)
        by_op = by_op[ops["phase"][made.op[by_op]] == BACKWARD]
        by_view = by_view[views["node"][made.view[by_view]] != NONE]
        if not len(by_op) and not len(by_view):
            return made
        op, view = made.op[by_op], made.view[by_view]
        for rows, sequence, before in (
            (by_op, ops["sequence"][op], op),
            (by_view, views["node"][view], views["op"][view]),
        ):
            further = nodes.makers(sequence, before)
            made.op[rows], made.view[rows] = further.op, further.view


class _Nodes:
    """The nodes that a range of ops and the views between them made, in the order of the program."""

    def __init__(self, capture: Capture, start: int, end: int) -> None:
        ops, nodes, views = (capture.tables[name] for name in ("ops", "nodes", "views"))
        number = np.arange(start, end)
        is_one = (ops["phase"][start:end] != BACKWARD) & (ops["sequence"][start:end] != NONE)
        forward = number[is_one & _is_given_memory(capture, start, end)]
        inside, seen = (
            np.flatnonzero((table["op"] >= start) & (table["op"] < end)) for table in (nodes, views)
        )
        op = np.concatenate([views["op"][seen], forward, nodes["op"][inside]])
        sequence = np.concatenate(
            [views["sequence"][seen], ops["sequence"][forward], nodes["sequence"][inside]]
        )
        is_op = np.arange(len(op)) >= len(seen)
        order = np.lexsort((is_op, op))  # a stable sort
        self._op, self._sequence, self._is_op = op[order], sequence[order], is_op[order]
        has_place = (views["stack"][seen] != NONE) | (views["module"][seen] != NONE)
        view = np.where(has_place, seen, NONE)  # views from before the block have no place
        self._view = np.append(view, np.full(len(op) - len(seen), NONE))[order]

    def first_with(self, sequence: IntArray) -> Makers:
        """Return the op or view that ran first while the node with each number was the newest."""
        return self._found(sequence, np.arange(len(self._op)), np.iinfo(np.int64).max)

    def makers(self, sequence: IntArray, before: IntArray) -> Makers:
        """Return the op or view that made the node with each number, if it had started before each op."""
        newest = np.maximum.accumulate(self._sequence)
        return self._found(sequence, np.flatnonzero(np.diff(newest, prepend=NONE - 1) > 0), before)

    def _found(self, sequence: IntArray, rows: IntArray, before: IntArray | int) -> Makers:
        if not len(rows):
            return Makers(*(np.full(len(sequence), NONE, dtype=np.int64) for _ in range(2)))
        numbers, first = np.unique(self._sequence[rows], return_index=True)
        position = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
        row = rows[first[position]]
        found = (numbers[position] == sequence) & (sequence != NONE)
        found &= self._op[row] + self._is_op[row] <= before
        by_op = self._is_op[row]
        return Makers(
            np.where(found & by_op, self._op[row], NONE), np.where(found & ~by_op, self._view[row], NONE)
        )


def _nodes_run(capture: Capture, start: int, end: int) -> IntArray:
    """Return the number of the node that each op in a range runs; -1 for ops outside a backward."""
    ops = capture.tables["ops"]
    return np.where(ops["phase"][start:end] == BACKWARD, ops["sequence"][start:end], NONE)


def _is_given_memory(capture: Capture, start: int, end: int) -> NDArray[np.bool_]:
    """Return whether each op has a tensor argument.

    Only such an op makes a node. At another op, the newest node may be that of a view before it.
    """
    uses, given = capture.tables["uses"], np.zeros(end, dtype=bool)
    for first in range(0, len(uses["op"]), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        op = uses["op"][part][uses["access"][part] != _OUTPUT]
        given[op[op < end]] = True
    return given[start:]


def saved_by_autograd(capture: Capture, named: int) -> NDArray[np.bool_]:
    """Return which storages autograd saved for a backward."""
    saved = np.zeros(named, dtype=bool)
    storages = capture.tables["packs"]["storage"]
    saved[storages[storages != NONE]] = True
    return saved


def crosses_to_backward(capture: Capture, named: int) -> NDArray[np.bool_]:
    """Return which storages a forward op made and an op in a backward read. Ops that are computed again count too."""
    crosses = np.zeros(named, dtype=bool)
    uses, births, phase = capture.tables["uses"], capture.tables["births"], capture.tables["ops"]["phase"]
    if not len(phase):
        return crosses
    made_forward = np.zeros(named, dtype=bool)
    by_op = births["op"] != NONE
    made_forward[births["storage"][by_op]] = phase[births["op"][by_op]] == FORWARD
    reads = (uses["access"] == ACCESSES.index("read")) & np.isin(phase[uses["op"]], IN_BACKWARD)
    read = uses["storage"][reads]
    crosses[read[made_forward[read]]] = True
    return crosses


COMPILED: Final = "a compiled function"
"""The text in place of an op's name."""


def compiled_call_at(capture: Capture, time_ns: IntArray) -> IntArray:
    """Return, for each time, the row of `compiled_calls` that was running; -1 if none was."""
    calls = capture.tables["compiled_calls"]  # outermost calls alone: no two overlap
    if not len(calls["start_ns"]):
        return np.full(len(time_ns), NONE, dtype=np.int64)
    row = np.searchsorted(calls["start_ns"], time_ns, side="right") - 1
    running = (row >= 0) & (time_ns <= calls["end_ns"][np.maximum(row, 0)])
    return np.where(running, row, NONE)


def compiled_call_of_node(capture: Capture, sequence: IntArray) -> IntArray:
    """Return, for each node of autograd's graph, the row of `compiled_nodes` of the call that made it; -1 for none."""
    nodes = capture.tables["compiled_nodes"]
    if not len(nodes["first"]):
        return np.full(len(sequence), NONE, dtype=np.int64)
    order = np.argsort(nodes["first"], kind="stable")
    at = np.maximum(np.searchsorted(nodes["first"][order], sequence, side="right") - 1, 0)
    row = order[at]
    is_made = (nodes["first"][row] <= sequence) & (sequence <= nodes["last"][row])
    return np.where(is_made, row, NONE)


def compiled_backward_at(capture: Capture, time_ns: IntArray) -> IntArray:
    """Return, for each time, the row of `compiled_nodes` whose backward was running; -1 if none was.

    A compiled backward runs ops too. Its other allocations are born just before or just after one of these ops.
    """
    ops, found = capture.tables["ops"], np.full(len(time_ns), NONE, dtype=np.int64)
    if not len(capture.tables["compiled_nodes"]["first"]) or not len(ops["start_ns"]):
        return found
    after = np.searchsorted(ops["start_ns"], time_ns, side="right")
    for op in (after - 1, after):
        is_one = (op >= 0) & (op < len(ops["start_ns"])) & (found == NONE)
        rows = np.flatnonzero(is_one)
        rows = rows[ops["phase"][op[rows]] == BACKWARD]
        found[rows] = compiled_call_of_node(capture, ops["sequence"][op[rows]])
    return found
