"""The tensors that autograd saved for backward: the op that saved each, its release, and whether a backward came."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.facts.forward_ops import COMPILED, compiled_call_at, op_of_node
from memwatch.analysis.facts.places import with_empty_end
from memwatch.capture.schema import BACKWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import Columns, IntArray


@dataclass(frozen=True)
class SavedTensors:
    """The saved tensors, one row each, in the order of saving.

    Attributes:
        storage: its storage, -1 if unknown.
        nbytes: its bytes.
        tensor: its dtype and shape.
        op: the op of a forward or a recomputation whose backward needs it, -1 if unknown.
        saving_op: the same. For a custom autograd function, which has no op of its own, the last op of its forward.
        op_name: the name of `op`, or `COMPILED`.
        module: the module in which it was saved.
        line: the line that saved it.
        saved_op: number of ops started before it was saved.
        used_op: the op before which backward first read it, -1 if never.
        released_op: the op before which autograd dropped it; -1 if never. If a node of compiled code took it over,
            this is the op before which the node dropped it.
        released_ns: the unix time at which this happened, -1 if never.
        of_region: whether it is an input that a checkpoint keeps to run its region again.
    """

    storage: IntArray
    nbytes: IntArray
    tensor: Coded
    op: IntArray
    saving_op: IntArray
    op_name: Coded
    module: Coded
    line: Coded
    saved_op: IntArray
    used_op: IntArray
    released_op: IntArray
    released_ns: IntArray
    of_region: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the saved tensors."""
        return len(self.storage)

    def held_at(self, op: int) -> NDArray[np.bool_]:
        """Return whether autograd held each saved tensor while an op ran."""
        held: NDArray[np.bool_] = (self.saved_op <= op) & (
            (self.released_op == NONE) | (self.released_op > op)
        )
        return held


def find_saved_tensors(facts: Facts) -> SavedTensors:
    """Return what autograd saved in the block."""
    packs, unpacks, ops = (facts.capture.tables[name] for name in ("packs", "unpacks", "ops"))
    count = len(packs["pack"])
    used, released = np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int64)
    read = unpacks["released"] == 0
    used[unpacks["pack"][read][::-1]] = unpacks["op"][read][::-1]  # the first read is written last and stays
    released[unpacks["pack"][~read]] = unpacks["op"][~read]
    of_region = (packs["sequence"] == NONE) | np.isin(packs["sequence"], facts.recomputes.nodes)
    op = np.where(of_region, NONE, op_of_node(facts.capture, packs["sequence"]))
    some = op != NONE
    name, stack = (np.full(count, NONE, dtype=np.int32) for _ in range(2))
    call = np.where(of_region, NONE, compiled_call_at(facts.capture, packs["time_ns"]))
    in_call = call != NONE
    saving_op = np.where((op == NONE) & ~of_region & ~in_call, packs["op"] - 1, op)
    strings, places = facts.capture.strings, facts.places
    name[in_call], stack[in_call] = (
        len(strings),
        facts.capture.tables["compiled_calls"]["stack"][call[in_call]],
    )
    name[some], stack[some] = ops["name"][op[some]], places.stack_of_op[op[some]]
    module = packs["module"].copy()
    # No module is called in a backward with `create_graph`. Such a backward has the modules of its forward ops.
    in_backward = np.flatnonzero(some)[ops["phase"][op[some]] == BACKWARD]
    module[in_backward] = places.module_of_op[op[in_backward]]
    released, released_ns = _in_hands_of_node(facts, packs, released)
    return SavedTensors(
        storage=packs["storage"],
        nbytes=packs["nbytes"],
        tensor=Coded(facts.strings, packs["shape"]),
        op=op,
        saving_op=saving_op,
        op_name=Coded(with_empty_end([*strings, COMPILED]), name),
        module=Coded(with_empty_end(places.module_tree.names), module),
        line=Coded(with_empty_end(places.line_of_stack), stack),
        saved_op=packs["op"],
        used_op=used,
        released_op=released,
        released_ns=released_ns,
        of_region=of_region,
    )


def _in_hands_of_node(facts: Facts, packs: Columns, released: IntArray) -> tuple[IntArray, IntArray]:
    """Return when autograd, or a node that took it over, dropped each saved tensor: the op, and the unix time.

    When the backward of a compiled function begins, autograd hands its saved tensors over to the node. The node frees
    each after its last use. Until then it counts as saved.
    """
    ops, allocations, storage = facts.capture.tables["ops"], facts.allocations, packs["storage"]
    unpacks = facts.capture.tables["unpacks"]
    released_ns, rows = np.full(len(released), NONE, dtype=np.int64), unpacks["released"] == 1
    released_ns[unpacks["pack"][rows]] = unpacks["time_ns"][rows]
    runs = np.flatnonzero((ops["phase"] == BACKWARD) & (ops["sequence"] != NONE))
    if not len(runs) or not len(storage):
        return released, released_ns
    nodes, at = np.unique(ops["sequence"][runs], return_inverse=True)
    last = np.full(len(nodes), NONE, dtype=np.int64)
    np.maximum.at(last, at, runs)
    place = np.minimum(np.searchsorted(nodes, packs["sequence"]), len(nodes) - 1)
    end = np.where(nodes[place] == packs["sequence"], last[place] + 1, NONE)
    death = np.append(allocations.death_event, NONE)[storage]  # -1 without a storage
    freed = np.where(death != NONE, facts.ops_at(death).astype(np.int64) + 1, np.iinfo(np.int64).max)
    taken_over = (released != NONE) & (released < end) & (storage != NONE)
    later = np.where(taken_over, np.maximum(released, np.minimum(end, freed)), released)
    starts = np.append(ops["start_ns"], np.iinfo(np.int64).max)
    return later, np.where(later > released, starts[np.minimum(later, len(starts) - 1)], released_ns)


_FEWEST_CROSSED: Final = 2
"""If this many iterations have ended since a tensor was saved, no backward will run its graph. A guess."""


class SavedTensorOutcome(Enum):
    """Whether a saved tensor is still needed."""

    NEEDED = "needed"
    """A backward reads or releases it later, or may still do so after the recording."""
    NEVER_READ = "never read"
    """No backward reached it before it was released, or none did for `_FEWEST_CROSSED` iterations."""
    OUTLIVED = "outlived"
    """The last backward that reads it has run, and autograd still holds it."""


def backward_numbers(in_backward: NDArray[np.bool_]) -> IntArray:
    """Return the number of the backward that each op belongs to, from 1 on; 0 is none. Adjacent backwards count as one.

    Args:
        in_backward: whether each op ran in a backward.
    """
    is_first = in_backward & ~np.append(False, in_backward[:-1])
    numbers: IntArray = np.where(in_backward, np.cumsum(is_first), 0)
    return numbers


def backward_of_reads(in_backward: NDArray[np.bool_], op: IntArray) -> IntArray:
    """Return the number of the backward that reads saved tensors.

    Args:
        in_backward: whether each op ran in a backward.
        op: the number of ops that had started before each read.
    """
    numbers = np.append(backward_numbers(in_backward), 0)
    # the last node of a backward may read a tensor and run no op
    found: IntArray = np.maximum(numbers[np.minimum(op, len(numbers) - 1)], numbers[np.maximum(op - 1, 0)])
    return found


class SavedTensorOutcomes:
    """Decides for each saved tensor whether it is still needed while an op runs."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        tables = facts.capture.tables
        ops, packs, unpacks = tables["ops"], tables["packs"], tables["unpacks"]
        self._last_read = np.full(len(packs["pack"]), NONE, dtype=np.int64)
        read = unpacks["released"] == 0
        np.maximum.at(self._last_read, unpacks["pack"][read], unpacks["op"][read])
        self._saved = saved
        in_backward = np.isin(ops["phase"], IN_BACKWARD)
        of_nodes = (ops["phase"] == BACKWARD) & (ops["sequence"] != NONE)
        ran = np.isin(packs["sequence"], ops["sequence"][of_nodes])
        of_node = packs["sequence"] != NONE  # not the input of a checkpointed region
        self._node_ran = ran | np.isin(
            packs["sequence"], packs["sequence"][of_node & (self._last_read != NONE)]
        )
        self._in_backward = np.append(in_backward, False)  # no op runs after the last
        self._run_of_op = np.append(backward_numbers(in_backward), 0)
        self._is_given_up = self._given_up(facts)
        self._last_run, self._may_free = self._runs(
            unpacks["pack"][read], unpacks["op"][read], np.append(ops["stack"], NONE)
        )

    def _runs(self, pack: IntArray, op: IntArray, stacks: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the backward that reads each saved tensor last, and which backwards may free what they read.

        A backward without `retain_graph` frees the saved tensors of its nodes. It may not do so if a later backward
        reads one of them. Backwards have numbers from 1; 0 is none.

        Args:
            pack: the saved tensor of each read.
            op: the number of ops that had started before each read.
            stacks: the call stack of each op.
        """
        number, run = backward_numbers(self._in_backward[:-1]), backward_of_reads(self._in_backward[:-1], op)
        is_first = self._in_backward & ~np.roll(self._in_backward, 1)
        self._call_of_run = np.append(NONE, stacks[np.flatnonzero(is_first)])
        last_run = np.zeros(len(self._last_read), dtype=np.int64)
        np.maximum.at(last_run, pack, run)
        may_free = np.ones(int(number.max(initial=0)) + 1, dtype=bool)
        may_free[run[run < last_run[pack]]] = False
        return last_run, may_free

    def is_freed_without_retain_graph(self, pack: int) -> bool:
        """Return True if the backward that reads a saved tensor last would free it without `retain_graph=True`."""
        return bool(self._may_free[self._last_run[pack]])

    def last_backward_of(self, pack: int) -> int:
        """Return the stack of the call of the backward that reads a saved tensor last; -1 for none."""
        return int(self._call_of_run[self._last_run[pack]])

    def at(self, pack: int, op: int) -> SavedTensorOutcome:
        """Return what became of a saved tensor, as seen while an op runs.

        Args:
            pack: row of the saved tensors.
            op: number of the op.
        """
        last, released = int(self._last_read[pack]), int(self._saved.released_op[pack])
        if last != NONE:
            run, last_run = self._run_of_op[op], self._last_run[pack]  # 0 is none
            outlived = last < op and (run == 0 or 0 < last_run < run)
            return SavedTensorOutcome.OUTLIVED if outlived else SavedTensorOutcome.NEEDED
        if self._is_given_up[pack]:
            return SavedTensorOutcome.NEVER_READ
        if self._node_ran[pack] or released == NONE:
            return SavedTensorOutcome.NEEDED
        if self._in_backward[released - 1] and not self._was_held_through_a_backward(pack, released):
            return SavedTensorOutcome.NEEDED
        return SavedTensorOutcome.NEVER_READ

    def _given_up(self, facts: Facts) -> NDArray[np.bool_]:
        """Return the tensors that were still saved at the end and that no backward will read.

        The backward of a graph may still run after the block. memwatch expects none for two kinds of graphs:

        1. A graph that is `_FEWEST_CROSSED` iterations old: a step has changed the weights, or other backwards have run
           instead. Younger graphs of the same calls count too, if an iteration has ended since.
        2. A graph of calls whose earlier graphs were all freed without a backward, as in an evaluation that runs again.
        """
        packs, stacks = facts.capture.tables["packs"], np.append(facts.capture.tables["ops"]["stack"], NONE)
        released = self._saved.released_op
        was_run = self._node_ran | (self._last_read != NONE)
        is_open = (released == NONE) & ~was_run
        if not is_open.any():
            return np.zeros(len(is_open), dtype=np.bool_)
        stack = stacks[np.minimum(packs["op"], len(stacks) - 1) - 1]  # of the op that saved it
        has_ended = (released != NONE) & ~was_run & ~self._in_backward[released - 1]
        never_run = np.setdiff1d(stack[has_ended], stack[was_run])
        given_up: NDArray[np.bool_] = is_open & np.isin(stack, never_run[never_run != NONE])
        if facts.kept_across.are_told:
            ends_ns = np.sort(facts.kept_across.ends_ns)
            crossed = len(ends_ns) - np.searchsorted(ends_ns, packs["time_ns"])
            is_old = is_open & (crossed >= _FEWEST_CROSSED)
            given_up |= is_open & (crossed > 0) & np.isin(stack, stack[is_old])
        return given_up

    def _was_held_through_a_backward(self, pack: int, released: int) -> bool:
        """Return True for a saved tensor that was released after the last op, and outlived an earlier backward."""
        ends = np.flatnonzero(self._in_backward[:-1] & ~self._in_backward[1:])
        return released == len(self._in_backward) - 1 and bool(
            ((ends >= self._saved.saved_op[pack]) & (ends < released - 1)).any()
        )
