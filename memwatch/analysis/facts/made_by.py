"""Find the op that made each allocation, with its name, call stack, line and module.

An imported memory snapshot has the call stack of each allocation, and no op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE
from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.facts.compiled_calls import COMPILED, compiled_backward_at, compiled_call_at
from memwatch.analysis.facts.lifts import OF_DATA, lifts
from memwatch.analysis.facts.places import with_empty_end
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.places import Places
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray


_ALLOC: Final = "alloc"


def imported_stacks(capture: Capture, storages: int) -> IntArray:
    """Return the stack of the call that allocated each storage, -1 where none was imported, shape (storages,)."""
    stacks = np.full(storages, NONE, dtype=np.int64)
    for name in ("blocks", "history"):  # the history has the last call at each address, so it wins
        rows = capture.tables[name]
        chosen = rows["storage"] != NONE
        if name == "history":
            chosen &= np.array(capture.text(rows["action"]), dtype=object) == _ALLOC
        stacks[rows["storage"][chosen]] = rows["stack"][chosen]
    return stacks


class MadeBy(NamedTuple):
    """Per allocation: its op's name, stack, lines and module; empty text or -1 where neither op nor call is known."""

    op_name: Coded
    stack: IntArray
    line: Coded
    own_line: Coded
    module_name: Coded


def made_by(capture: Capture, allocations: Allocations, places: Places) -> MadeBy:
    """Return the facts about the op that made each allocation, or about the call that made it without an op."""
    ops, op = capture.tables["ops"], allocations.op
    count = len(allocations)
    some: NDArray[np.bool_] = (op != NONE) & (op < len(ops["op"]))  # a killed program may lack its last op
    name, stack, module = (np.full(count, NONE, dtype=np.int32) for _ in range(3))
    name[some] = ops["name"][op[some]]
    stack[some], module[some] = places.stack_of_op[op[some]], places.module_of_op[op[some]]
    without_op = ~some & (allocations.storage != NONE)
    stack[without_op] = imported_stacks(capture, allocations.named)[allocations.storage[without_op]]
    lifted = lifts(capture, allocations.named)
    of_data: NDArray[np.bool_] = without_op & lifted.is_lift[allocations.storage]
    data = allocations.storage[of_data]
    name[of_data] = len(capture.strings) + 1
    stack[of_data], module[of_data] = lifted.stack[data], lifted.module[data]
    some |= of_data
    call = np.where(some, NONE, compiled_call_at(capture, allocations.birth_ns))
    in_call, calls = call != NONE, capture.tables["compiled_calls"]
    name[in_call] = len(capture.strings)
    stack[in_call], module[in_call] = calls["stack"][call[in_call]], calls["module"][call[in_call]]
    unknown = np.flatnonzero(~some & ~in_call & (allocations.origin != BASELINE))
    backward, nodes = (
        compiled_backward_at(capture, allocations.birth_ns[unknown]),
        capture.tables["compiled_nodes"],
    )
    in_backward, of_call = unknown[backward != NONE], backward[backward != NONE]
    name[in_backward] = len(capture.strings)
    stack[in_backward], module[in_backward] = nodes["stack"][of_call], nodes["module"][of_call]
    names = with_empty_end([*capture.strings, COMPILED, OF_DATA])
    return MadeBy(
        op_name=Coded(names, name),
        stack=stack,
        line=Coded(with_empty_end(places.line_of_stack), stack),
        own_line=Coded(with_empty_end(places.own_line_of_stack), stack),
        module_name=Coded(with_empty_end(places.module_tree.names), module),
    )
