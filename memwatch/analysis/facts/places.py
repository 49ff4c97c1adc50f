"""Places: for every op and stack, the line of the program's own code and the module it ran for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.analysis.facts.module_names import ModuleTree, read_modules
from memwatch.capture.schema import NONE, PHASES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

Texts = np.ndarray[Any, Any]
"""An array of str objects."""

BACKWARD = PHASES.index("backward")


@dataclass(frozen=True)
class Places:
    """Per stack: the program's line and function. Per op: the stack and module that reports name for it."""

    line_of_stack: list[str]
    function_of_stack: list[str]
    stack_of_op: IntArray  # in backward that of the forward op, where it is known
    module_of_op: IntArray  # likewise
    module_tree: ModuleTree

    def lines(self, stacks: IntArray) -> Texts:
        """Return `file:line` of each stack, empty for -1."""
        return with_empty_end(self.line_of_stack)[stacks]

    def functions(self, stacks: IntArray) -> Texts:
        """Return the function of each stack, empty for -1."""
        return with_empty_end(self.function_of_stack)[stacks]

    def modules(self, numbers: IntArray) -> Texts:
        """Return the qualified name of each module, empty for -1."""
        return with_empty_end(self.module_tree.names)[numbers]

    def classes(self, numbers: IntArray) -> Texts:
        """Return the class of each module, empty for -1."""
        return with_empty_end(self.module_tree.classes)[numbers]


def with_empty_end(texts: list[str]) -> Texts:
    """Return texts as an array with empty text at its end, so that the number -1, "there is none", finds that."""
    return np.array([*texts, ""], dtype=object)


def find_places(capture: Capture) -> Places:
    """Return the place of every op of a capture."""
    lines, functions = _innermost_callers(capture)
    ops = capture.tables["ops"]
    forward = forward_op_of(ops)
    has = forward != NONE
    safe = np.maximum(forward, 0)
    stack = np.where(has, ops["stack"][safe], ops["stack"]) if len(forward) else ops["stack"]
    module = np.where(has, ops["module"][safe], ops["module"]) if len(forward) else ops["module"]
    return Places(lines, functions, stack, module, read_modules(capture))


def _innermost_callers(capture: Capture) -> tuple[list[str], list[str]]:
    """Return, per stack, `file:line` and function of the innermost frame of code that calls torch."""
    stacks = capture.tables["stacks"]
    count = int(stacks["stack"].max()) + 1 if len(stacks["stack"]) else 0
    rows = np.full(count, NONE, dtype=np.int64)
    # The second choice wins over the first, which is for stacks that show torch's own frames only.
    for chosen in (stacks["depth"] == 0, stacks["owner"] <= CodeOwner.INSTALLED):
        index = np.flatnonzero(chosen)[::-1]
        rows[stacks["stack"][index]] = index
    lines, functions = [""] * count, [""] * count
    for stack in np.flatnonzero(rows != NONE).tolist():
        row = int(rows[stack])
        lines[stack] = f"{capture.strings[stacks['file'][row]]}:{stacks['line'][row]}"
        functions[stack] = capture.strings[stacks["function"][row]]
    return lines, functions


def forward_op_of(ops: dict[str, IntArray]) -> IntArray:
    """Return, for each backward op, the forward op that made its node; -1 for all others.

    A forward op made a node if autograd's sequence number moved when it ran; a backward op carries the
    number of the node that runs.
    """
    sequence, forward = ops["sequence"], ops["phase"] != BACKWARD
    index = np.flatnonzero(forward & (sequence != NONE))
    if not len(index):
        return np.full(len(sequence), NONE, dtype=np.int64)
    running = np.maximum.accumulate(sequence[index])
    moved = index[np.concatenate([[True], running[1:] > running[:-1]])]
    numbers = sequence[moved]
    position = np.searchsorted(numbers, sequence)
    position = np.minimum(position, len(numbers) - 1)
    found = ~forward & (sequence != NONE) & (numbers[position] == sequence)
    return np.where(found, moved[position], NONE)
