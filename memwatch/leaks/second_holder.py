"""Decide which of two holders of a tensor is the leak: the holder of the latest value, or the holder of all values.

`self.last = out; self.all.append(out)` holds a tensor twice. The next call replaces the first reference and adds to
the second. If there is only one pass, a container's entry is therefore reported rather than a variable's value. The
entry of a dictionary is reported if it has older entries of its sort, as in a table. Without them it may be a slot
that is filled again, and so may an item of a list with older items behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.heap.paths import Step
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


def has_latest(survivor: Survivor) -> bool:
    """Return True if what holds a survivor has one value at a time."""
    return survivor.cut is not None and survivor.cut.edge.kind in LATEST


def is_latest(survivor: Survivor) -> bool:
    """Return True for the one value of a name. Tensors in its graph or its entries do not count."""
    return has_latest(survivor) and survivor.steps[-1] is survivor.cut


def shows_all(survivor: Survivor) -> int:
    """Return the evidence that a survivor's holder keeps all values: 0 for a name, which has only the latest one.

    1 for a value of a dictionary, and for an item between older ones, which may be a slot that is filled again. 2 for
    an entry of a table with older entries of its sort, and for a holder that only grows, such as a list.
    """
    if has_latest(survivor):
        return 0
    is_value = survivor.cut is not None and survivor.cut.edge.kind is EdgeKind.VALUE
    return 1 if survivor.is_amid or (is_value and not survivor.is_one_more) else _ALL


def is_amid_older(snapshot: Snapshot, owner: object, cut: Step) -> bool:
    """Return True for an item of a list whose last item is from before the runs: the list got no longer by it.

    Unless it was inserted, as into a heap: then no other list has it.
    """
    if cut.edge.kind is not EdgeKind.ITEM or type(owner) is not list or not owner:
        return False
    return any(map(snapshot.is_old, snapshot.positions([id(owner[-1])])))


def may_have_latest(survivor: Survivor, *, per_call: bool) -> bool:
    """Return True if what holds a survivor may have one value at a time.

    Args:
        survivor: the survivor.
        per_call: True if it is one of several calls: then the earlier ones show of a name that it has the latest alone.
    """
    return survivor.is_amid if per_call else shows_all(survivor) < _ALL


def latest_references(explained: Iterable[tuple[Survivor, list[int]]], *, per_call: bool) -> Positions:
    """Return the references to latest values.

    Args:
        explained: survivors, each with its path from a root as positions in the snapshot.
        per_call: True if they are of several calls.
    """
    return {
        (chain[survivor.cut.end - 1], chain[survivor.cut.end])
        for survivor, chain in explained
        if survivor.cut is not None and may_have_latest(survivor, per_call=per_call)
    }
