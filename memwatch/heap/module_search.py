"""Search for modules: which variables of the running calls lead to an `nn.Module`, and how.

A module has no name of its own. Its author's name for it is the variable or attribute that leads the program to it.
The search for names also finds parents that the program never calls, and copies that never run.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final, NamedTuple

from torch import nn

from memwatch.heap.class_checks import derives, is_a
from memwatch.heap.classes import of_classes
from memwatch.heap.variable_search import ways_from_calls

if TYPE_CHECKING:
    from types import FrameType

    from memwatch.own_code import CodeOwner

_NAMES_NOBODY: Final = ("self", "cls")
"""Variables that name whatever a method is called on."""


class Sighting(NamedTuple):
    """One path from a variable of the program to a module.

    Attributes:
        module: the module.
        name: the expression: `generator`, `self.gen`, `nets['g']`; relative to `holder` if there is one.
        holder: the last module on the path; one of its attributes, lists or dictionaries leads on.
    """

    module: nn.Module
    name: str
    holder: nn.Module | None = None


def find_modules(frame: FrameType | None, owner: CodeOwner) -> list[Sighting]:
    """Return how the running calls of some code refer to modules, the best names first. Drop the list soon.

    Short paths come before long paths. A caller's variables come before its callees' variables: `generator` in the
    training script says more than `net`, an argument of a function.

    Args:
        frame: the innermost call.
        owner: whose calls are searched: the program's, or installed packages'.
    """
    found = [
        (way.hops, Sighting(way.value, way.name.removeprefix("."), way.holder))
        for way in ways_from_calls(frame, owner)
        if is_a(way.value, nn.Module) and (way.name not in _NAMES_NOBODY or way.hops)
    ]
    return [sighting for _, sighting in sorted(found, key=lambda each: each[0])]


def living_modules() -> list[nn.Module]:
    """Return every module of the process: one pass over gc's objects, tens of milliseconds; drop the list soon."""
    return of_classes(gc.get_objects(), lambda cls: derives(cls, nn.Module))
