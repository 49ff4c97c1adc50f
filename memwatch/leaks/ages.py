"""Which objects of a retention path are from before the runs, and what identifies them from one look to the next.

gc tells old objects from young ones, but for a dictionary: one that has held nothing but numbers and texts, or nothing
at all, is unknown to gc, and looks young once a tensor is put in. So one that an old object holds under a name of its
own counts as old; an item of an old list, or a value of an old dictionary, may have been added in the runs. Likewise
with numpy's arrays of objects, none of which gc knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.edges import EdgeKind
from memwatch.heap.names import type_name
from memwatch.heap.paths import steps_of
from memwatch.heap.roots import Root

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from memwatch.heap.snapshot import Snapshot

_DTYPE: Final = np.ndarray.__dict__["dtype"]
_ENTRIES: Final = frozenset({EdgeKind.ITEM, EdgeKind.VALUE, EdgeKind.KEY, EdgeKind.MEMBER})


def are_old(snapshot: Snapshot, chain: Sequence[int]) -> list[bool]:
    """Say of each object of a chain from a root whether it was there before the runs."""
    old: list[bool] = []
    for at, place in enumerate(chain):
        is_held_by_old = len(old) < 2 or old[-1]  # by a root, too
        old.append(snapshot.is_old(place) or (is_held_by_old and _is_own_container(snapshot, chain, at)))
    return old


def identity(snapshot: Snapshot, chain: Sequence[int], at: int) -> Hashable:
    """Return what identifies an owner on a chain from a root, or from an owner; those made anew share one."""
    obj = snapshot.objects[chain[at]]
    if type(obj) is Root:
        return obj.kind
    if snapshot.is_old(chain[at]):
        return id(obj)
    if _is_own_container(snapshot, chain, at):
        named = [(step.edge.name, step.edge.position) for step in steps_of(snapshot, chain[at - 1 : at + 1])]
        return identity(snapshot, chain, at - 1), *named
    return type_name(type(obj))


def _is_own_container(snapshot: Snapshot, chain: Sequence[int], at: int) -> bool:
    """Return True for a dictionary, or an array of objects, that is no entry of a container."""
    if at == 0 or not _may_hide_its_age(snapshot.objects[chain[at]]):
        return False
    steps = steps_of(snapshot, chain[: at + 1])
    return not steps or steps[-1].edge.kind not in _ENTRIES


def _may_hide_its_age(obj: Any) -> bool:
    cls = type(obj)
    return cls is dict or (cls is np.ndarray and _DTYPE.__get__(obj) == np.object_)
