"""Places: for every op and stack, the line of the program's own code and the module it ran for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
    stack_of_op: IntArray  # in backward that of the op that made the node, where it is known
    module_of_op: IntArray  # likewise
    module_names: list[str]
    module_classes: list[str]

    def lines(self, stacks: IntArray) -> Texts:
        """Return `file:line` of each stack, empty for -1."""
        return with_empty_end(self.line_of_stack)[stacks]

    def functions(self, stacks: IntArray) -> Texts:
        """Return the function of each stack, empty for -1."""
        return with_empty_end(self.function_of_stack)[stacks]

    def modules(self, numbers: IntArray) -> Texts:
        """Return the qualified name of each module, empty for -1."""
        return with_empty_end(self.module_names)[numbers]

    def classes(self, numbers: IntArray) -> Texts:
        """Return the class of each module, empty for -1."""
        return with_empty_end(self.module_classes)[numbers]


def with_empty_end(texts: list[str]) -> Texts:
    """Return texts as an array with empty text at its end, so that the number -1, "there is none", finds that."""
    return np.array([*texts, ""], dtype=object)


def find_places(capture: Capture) -> Places:
    """Return the place of every op of a capture."""
    lines, functions = _innermost_callers(capture)
    ops = capture.tables["ops"]
    forward = _within_regions(capture, forward_op_of(ops))
    has = forward != NONE
    safe = np.maximum(forward, 0)
    stack = np.where(has, ops["stack"][safe], ops["stack"]) if len(forward) else ops["stack"]
    module = np.where(has, ops["module"][safe], ops["module"]) if len(forward) else ops["module"]
    return Places(lines, functions, stack, module, *_modules(capture))


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
    """Return, for each backward op, the op of a forward or of a recomputation that made its node; -1 for all others.

    An op made a node if autograd's sequence number moved when it ran; a backward op carries the number of the node that
    runs. What is recomputed in backward has a place of its own.
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


def _within_regions(capture: Capture, forward: IntArray) -> IntArray:
    """Return the same, but what the backward of a reentrant region ran is put down to that run of the region.

    Numbers of nodes count in each thread: on another device a region runs again in a thread of autograd's.
    """
    ops, runs = capture.tables["ops"], capture.tables["recomputes"]
    reentrant = runs["sequence"] != NONE
    spans = zip(runs["start_op"][reentrant].tolist(), runs["end_op"][reentrant].tolist(), strict=True)
    for start, end in reversed(list(spans)):  # the outer of two is left last
        within = {name: column[start:end] for name, column in ops.items()}
        made = forward_op_of(within)
        forward[start:end] = np.where(made != NONE, made + start, NONE)
    return forward


def _modules(capture: Capture) -> tuple[list[str], list[str]]:
    """Return the qualified name and class of every module; names that two trees share start with the root's class."""
    modules = capture.tables["modules"]
    names, classes = capture.text(modules["name"]), capture.text(modules["class_name"])
    roots: list[int] = []
    for row, parent in enumerate(modules["parent"].tolist()):
        roots.append(row if parent == NONE else roots[parent])
    labels = _root_labels(roots, classes)
    owners: dict[str, set[int]] = {}
    for name, root in zip(names, roots, strict=True):
        owners.setdefault(name, set()).add(root)
    qualified = []
    for name, root in zip(names, roots, strict=True):
        if not name:
            qualified.append(labels[root])
        else:
            qualified.append(f"{labels[root]}.{name}" if len(owners[name]) > 1 else name)
    return qualified, classes


def _root_labels(roots: list[int], classes: list[str]) -> dict[int, str]:
    """Return a label for each root: its class, numbered where several roots share one."""
    labels: dict[int, str] = {}
    used: dict[str, int] = {}
    for root in dict.fromkeys(roots):
        label = classes[root]
        used[label] = used.get(label, 0) + 1
        labels[root] = label if used[label] == 1 else f"{label}#{used[label]}"
    return labels
