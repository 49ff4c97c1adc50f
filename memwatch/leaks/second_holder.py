"""Which of two holders of a tensor is the leak: the one that has its latest value, or the one that has them all?

`self.last = out; self.all.append(out)` holds a tensor twice. The next call replaces the one reference and adds to the
other, so where one pass is all there is to look at, a container's entry is told rather than a variable's value. So is
the entry of a dictionary that has older ones of its sort, a table; one that has none may be a slot to fill again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind
from memwatch.heap.tensors import mro_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.heap.snapshot import Snapshot
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
_ALL: Final = 2
_MOST_VALUES: Final = 1_000
"""Values of a dictionary that are looked at, from the newest on: a call that adds more than these is no matter."""


def has_latest(survivor: Survivor) -> bool:
    """Return True if what holds a survivor has one value at a time."""
    return survivor.cut is not None and survivor.cut.edge.kind in LATEST


def is_latest(survivor: Survivor) -> bool:
    """Return True for the one value of a name itself, not for what its graph or its entries keep."""
    return has_latest(survivor) and survivor.steps[-1] is survivor.cut


def shows_all(survivor: Survivor) -> int:
    """Return how much shows that what holds a survivor keeps all values: 0 for a name, which has the latest one.

    1 for a value of a dictionary, which may be a slot to fill again; 2 for an entry of a table, which has older ones of
    its sort beside it, and for what else can only be added to, such as a list.
    """
    if has_latest(survivor):
        return 0
    is_slot = survivor.cut is not None and survivor.cut.edge.kind is EdgeKind.VALUE and not survivor.in_table
    return 1 if is_slot else _ALL


def may_have_latest(survivor: Survivor) -> bool:
    """Return True if what holds a survivor may have one value at a time."""
    return shows_all(survivor) < _ALL


def is_in_table(snapshot: Snapshot, table: int, value: int) -> bool:
    """Return True if a dictionary has an older value of the same class too, by their positions."""
    owner, cls = snapshot.objects[table], type(snapshot.objects[value])
    if dict not in mro_of(type(owner)):
        return False
    newest_first = islice(reversed(dict.values(owner)), _MOST_VALUES)
    others = [id(other) for other in newest_first if type(other) is cls]
    return any(map(snapshot.is_old, snapshot.positions(others)))


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
