"""Which objects of a retention path are from before the runs, and what identifies them from one look to the next.

gc tells old objects from young ones, but for a dictionary: one that has held nothing but numbers and texts, or nothing
at all, is unknown to gc, and looks young once a tensor is put in. So one that an old object holds counts as old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.heap.names import type_name
from memwatch.heap.paths import steps_of
from memwatch.heap.roots import Root

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from memwatch.heap.snapshot import Snapshot


def are_old(snapshot: Snapshot, chain: Sequence[int]) -> list[bool]:
    """Say of each object of a chain from a root whether it was there before the runs."""
    old: list[bool] = []
    for place in chain:
        is_dictionary = type(snapshot.objects[place]) is dict
        is_held_by_old = len(old) < 2 or old[-1]  # by a root, too
        old.append(snapshot.is_old(place) or (is_dictionary and is_held_by_old))
    return old


def identity(snapshot: Snapshot, chain: Sequence[int], at: int) -> Hashable:
    """Return what identifies an owner on a chain from a root, or from an owner; those made anew share one."""
    obj = snapshot.objects[chain[at]]
    if type(obj) is Root:
        return obj.kind
    if snapshot.is_old(chain[at]):
        return id(obj)
    if at and type(obj) is dict:
        named = [(step.edge.name, step.edge.position) for step in steps_of(snapshot, chain[at - 1 : at + 1])]
        return identity(snapshot, chain, at - 1), *named
    return type_name(type(obj))
