"""What names took in, from one block to the next: does a name have one value, or does it keep all the earlier ones?

A variable or an attribute that gets a tensor in one block may have had a number before, or nothing: its next value
takes the place of this one. It grows if the values of some blocks in a row are all alive, as those of a chain of nodes
are of which each has the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind
from memwatch.leaks.kinds import LeakKind

if TYPE_CHECKING:
    import weakref
    from collections.abc import Hashable, Iterable

    import torch

    from memwatch.leaks.survivor import Survivor

_NAMES: Final = frozenset(
    {
        EdgeKind.GLOBAL,
        EdgeKind.ATTRIBUTE,
        EdgeKind.CLASS_ATTRIBUTE,
        EdgeKind.BUFFER,
        EdgeKind.CLOSURE_CELL,
        EdgeKind.CONTEXT_VARIABLE,
        EdgeKind.THREAD_LOCAL,
        EdgeKind.LOCAL,
    }
)
_MOST: Final = 3
"""Blocks whose values a name may have kept: `previous, current = current, new` keeps two."""


class FilledNames:
    """The values that names took in, block by block; keeps none of them alive."""

    def __init__(self) -> None:
        self._values: dict[Hashable, list[list[weakref.ref[torch.UntypedStorage]]]] = {}

    def note(self, survivors: Iterable[Survivor]) -> None:
        """Note what a block left, and say of each survivor whether the next value of its name may take its place."""
        names: dict[Hashable, list[Survivor]] = {}
        for survivor in survivors:
            if _is_of_name(survivor):
                names.setdefault(survivor.holding[:2], []).append(survivor)
        for name, values in names.items():
            blocks = [refs for refs in self._values.get(name, []) if any(ref() is not None for ref in refs)]
            for survivor in values:
                survivor.may_be_replaced = len(blocks) < _MOST
            self._values[name] = [*blocks[-_MOST:], [survivor.storage.ref for survivor in values]]


def _is_of_name(survivor: Survivor) -> bool:
    """Return True for what one name leads to, but for what a graph keeps: it grows with the value that has it."""
    if survivor.kind is not LeakKind.RETAINED or survivor.unreachable or survivor.cut is None:
        return False
    return survivor.cut.edge.kind in _NAMES and not survivor.through_graph
