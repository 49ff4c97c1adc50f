"""Places: for every op and stack, the line of the program's own code and the module it ran for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import NONE, PHASES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

BACKWARD = PHASES.index("backward")


@dataclass(frozen=True)
class Places:
    """Per stack: the user's line and function. Per op: the stack and module it is told under."""

    line_of_stack: list[str]
    function_of_stack: list[str]
    stack_of_op: IntArray  # in backward that of the forward op, where it is known
    module_of_op: IntArray  # likewise
    module_names: list[str]
    module_classes: list[str]

    def line(self, stack: int) -> str:
        """Give `file:line` of a stack, empty for -1."""
        return self.line_of_stack[stack] if stack >= 0 else ""

    def module(self, number: int) -> str:
        """Give the qualified name of a module, empty for -1."""
        return self.module_names[number] if number >= 0 else ""


def find_places(capture: Capture) -> Places:
    """Find the place of every op of a capture."""
    lines, functions = _user_frames(capture)
    ops = capture.tables["ops"]
    forward = forward_op_of(ops)
    has = forward != NONE
    safe = np.maximum(forward, 0)
    stack = np.where(has, ops["stack"][safe], ops["stack"]) if len(forward) else ops["stack"]
    module = np.where(has, ops["module"][safe], ops["module"]) if len(forward) else ops["module"]
    return Places(lines, functions, stack, module, *_modules(capture))


def _user_frames(capture: Capture) -> tuple[list[str], list[str]]:
    """Give, per stack, `file:line` and function of the innermost frame that is the program's own."""
    stacks = capture.tables["stacks"]
    count = int(stacks["stack"].max()) + 1 if len(stacks["stack"]) else 0
    rows = np.full(count, NONE, dtype=np.int64)
    for chosen in (
        stacks["depth"] == 0,
        stacks["owner"] <= CodeOwner.INSTALLED,
    ):  # without a frame of its own: the innermost of all
        index = np.flatnonzero(chosen)[::-1]
        rows[stacks["stack"][index]] = index
    lines, functions = [""] * count, [""] * count
    for stack in np.flatnonzero(rows != NONE).tolist():
        row = int(rows[stack])
        lines[stack] = f"{capture.strings[stacks['file'][row]]}:{stacks['line'][row]}"
        functions[stack] = capture.strings[stacks["function"][row]]
    return lines, functions


def forward_op_of(ops: dict[str, IntArray]) -> IntArray:
    """Give, for each backward op, the forward op that made its node; -1 for all others.

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


def _modules(capture: Capture) -> tuple[list[str], list[str]]:
    """Give the qualified name and class of every module; the root's class comes before names that two trees share."""
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
    """Name each root by its class, numbered where several roots share one."""
    labels: dict[int, str] = {}
    used: dict[str, int] = {}
    for root in dict.fromkeys(roots):
        label = classes[root]
        used[label] = used.get(label, 0) + 1
        labels[root] = label if used[label] == 1 else f"{label}#{used[label]}"
    return labels
