"""Calls of compiled functions: the memory that they or their backwards allocate or save. Their ops are not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import BACKWARD, NONE

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

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
