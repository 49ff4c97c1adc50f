"""Which of two holders of a tensor is the leak: the one that has its latest value, or the one that has them all?

`self.last = out; self.all.append(out)` holds a tensor twice. The next call replaces the one reference and adds to the
other, so where one pass is all there is to look at, a container's entry is told rather than a variable's value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.leaks.known_retainers import Positions
    from memwatch.leaks.survivor import Survivor

LATEST: Final = frozenset(
    {
        EdgeKind.GLOBAL,
        EdgeKind.ATTRIBUTE,
        EdgeKind.CLASS_ATTRIBUTE,
        EdgeKind.BUFFER,
        EdgeKind.PARAMETER,
        EdgeKind.GRAD,
        EdgeKind.CLOSURE_CELL,
        EdgeKind.CONTEXT_VARIABLE,
        EdgeKind.THREAD_LOCAL,
        EdgeKind.LOCAL,
        EdgeKind.ARGUMENT,
    }
)
"""References of which one name has one value."""


def has_latest(survivor: Survivor) -> bool:
    """Return True if what holds a survivor has one value at a time."""
    return survivor.cut is not None and survivor.cut.edge.kind in LATEST


def may_have_latest(survivor: Survivor) -> bool:
    """Return True for a value under a name in a dictionary too: a text without a number, as of a slot to fill again."""
    if survivor.cut is None or survivor.cut.edge.kind is not EdgeKind.VALUE:
        return has_latest(survivor)
    name = survivor.cut.edge.name or ""
    return name.startswith(("'", '"')) and not any(map(str.isdigit, name))


def latest_references(explained: Iterable[tuple[Survivor, list[int]]]) -> Positions:
    """Return the references to latest values.

    Args:
        explained: survivors, each with its path from a root as positions in the snapshot.
    """
    return {
        (chain[survivor.cut.end - 1], chain[survivor.cut.end])
        for survivor, chain in explained
        if survivor.cut is not None and may_have_latest(survivor)
    }
