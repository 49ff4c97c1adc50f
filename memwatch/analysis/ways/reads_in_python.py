"""Find values of the batch that a program reads in Python before a backward, where no op shows what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.capture.schema import FORWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray


class ReadInPython(NamedTuple):
    """A line of the program that gives the values of a tensor to Python.

    Attributes:
        method: `tolist` or `numpy`.
        site: `file:line`.
    """

    method: str
    site: str


def read_before_backward(facts: Facts, forwards: Iterable[range]) -> ReadInPython | None:
    """Return the first line that may read values for the loss of some forwards; None if there is none.

    The line is in a function that calls ops of a forward, and stands before the line that calls the backward. If the
    function trains in a loop, the line is in the same loop. The recording does not show which tensor the line reads,
    nor reads in functions that call no ops.

    Args:
        facts: the facts of the capture.
        forwards: the ops of each forward with its backward.
    """
    noted = facts.capture.meta.get("reads_in_python", [])
    if not noted:
        return None
    ops = facts.capture.tables["ops"]
    lines: dict[tuple[str, str], set[int]] = {}  # by function, those that call ops of a forward
    last: dict[tuple[str, str], int] = {}  # the line that calls the backward
    for each in forwards:
        phase, stacks = ops["phase"][each.start : each.stop], ops["stack"][each.start : each.stop]
        for function, line in _lines(facts, stacks[phase == FORWARD]):
            lines.setdefault(function, set()).add(line)
        for function, line in _lines(facts, stacks[np.isin(phase, IN_BACKWARD)][:1]):
            lines.setdefault(function, set()).add(line)
            last[function] = max(line, last.get(function, line))
    for file, name, method, line, numbers in noted:
        function = (file, name)
        if function not in lines or line > last.get(function, line):
            continue
        # the first and the last line of each loop of the function
        loops = [range(start, end + 1) for start, end in zip(numbers[::2], numbers[1::2], strict=False)]
        loop = next((loop for loop in loops if line in loop), None)
        if any(at in loop if loop else not any(at in each for each in loops) for at in lines[function]):
            return ReadInPython(method, f"{file}:{line}")
    return None


def _lines(facts: Facts, stacks: IntArray) -> Iterable[tuple[tuple[str, str], int]]:
    """Yield the functions of some call stacks, each with its line."""
    for stack in np.unique(stacks[stacks != NONE]).tolist():
        for call in facts.call_stacks.frames(stack):
            yield (call.file, call.function), call.line
