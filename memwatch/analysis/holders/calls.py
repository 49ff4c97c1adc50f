"""The call on whose evaluation stack an unnamed value lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memwatch.analysis.facts.places import CALLS_ENGINE
from memwatch.capture.schema import NONE
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts

COMPREHENSIONS = ("comp>", "genexpr>")
"""The ends of the names that Python gives to comprehensions and to generator expressions."""


class StackCall(NamedTuple):
    """A running call of the program: its place, and the name of its function."""

    file: str
    line: int
    function: str
    is_own: bool

    @property
    def site(self) -> str:
        """`file:line` that the call has reached."""
        return f"{self.file}:{self.line}"


def common_call(facts: Facts, allocation: int, op: int) -> StackCall | None:
    """Return the program's innermost call that ran both when an allocation was made and while an op ran.

    Allocations of autograd's engine do not belong to the calls around the engine, only to calls that it makes itself.
    """
    made = int(facts.allocations.op[allocation])
    if op < 0 or made == NONE:
        return None
    stack = facts.capture.tables["ops"]["stack"]
    birth, now = (facts.call_stacks.frames(int(stack[number]))[::-1] for number in (made, op))
    found = loop = None
    for (file, line, function, calls_torch), (file_now, line_now, function_now, _) in zip(
        birth, now, strict=False
    ):
        if (file, function) != (file_now, function_now):
            return found
        if file.endswith(CALLS_ENGINE):
            found = loop = None
        if calls_torch:
            is_own = facts.call_stacks.owner_of_file[file] == CodeOwner.PROGRAM
            found = StackCall(file, line_now, defined_name(function), is_own)
            loop = found if function.endswith("comp>") else loop
        if line != line_now:
            return found
    return loop or found  # the same calls once more: what the first of them made is held further out


def defined_name(function: str) -> str:
    """Return the name of a function in its `def`; for a comprehension, the name of the function around it."""
    *around, name = function.replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(COMPREHENSIONS) and around else name
