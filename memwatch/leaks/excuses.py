"""Containers whose content does not leak: bounded ones, registries, and places that were filled before.

An excuse covers the container's content. It does not cover another holder of the same object: an unbounded list is a
leak even beside a window of the latest items. The bound of a cache covers its results. It does not cover an object
that is part of its keys, such as the `self` of each call of a cached method. A registry is a container into which its
objects put themselves.

gc's generations tell old objects from new ones. Dictionaries need care: gc starts to track a dictionary only when it
first holds a container or a tensor, so an old dictionary can look new. A dictionary that an old object holds under an
attribute of its own therefore counts as old. An item of an old list, or a value of an old dictionary, may have been
added during the runs. The same holds for numpy arrays of objects, which gc does not know.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.heap.class_checks import is_a
from memwatch.heap.names import type_name
from memwatch.heap.paths import steps_of
from memwatch.heap.roots import Root
from memwatch.heap.tensors import is_tensor, mro_of, type_dict
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.exemptions import is_bounded
from memwatch.leaks.fixed_places import fills_its_place, was_read_by_all

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from memwatch.heap.paths import Step
    from memwatch.heap.snapshot import Snapshot
    from memwatch.leaks.fixed_places import Slots


def excusing(
    objects: Sequence[Any],
    steps: Sequence[Step],
    cut: Step | None,
    slots: Slots,
    *,
    growth_counts: bool,
    one_pass: bool,
    is_one_more: bool,
) -> int | None:
    """Return which object of a retention path excuses the objects behind it, or None.

    Args:
        objects: the path.
        steps: its references.
        cut: the reference through which an older object holds a new one.
        slots: the known lists with empty places.
        growth_counts: True if a place from before the runs may leak by its new content.
        one_pass: True if there is a single snapshot. Then a bounded container that is new itself is excused as well.
        is_one_more: True if the reference to cut belongs to a container with older entries of the class. Each of many
            bounded containers is bounded, but their number is not.
    """
    bounded = next((at for at, obj in enumerate(objects) if is_bounded(obj)), None)
    if bounded is not None and not is_argument_object(objects, cut):
        is_filled = cut is None or bounded == cut.start
        is_new = one_pass and cut is not None and bounded > cut.start and not is_one_more
        if is_filled or is_new:
            return bounded
    read = was_read_by_all(objects)
    if read is not None or cut is None:
        return read
    owner = objects[cut.start]
    is_place = slots.is_slot(owner, cut) or (not growth_counts and fills_its_place(owner, cut, steps))
    return cut.start if is_place else None


def is_argument_object(objects: Sequence[Any], cut: Step | None) -> bool:
    """Return True if a cache keeps an object, with the object's tensors, because it was an argument of a call.

    A tensor that is an argument itself was given to the cache on purpose.

    Args:
        objects: a retention path.
        cut: its reference to cut.
    """
    if cut is None or cut.edge.kind is not EdgeKind.CACHE_ARGUMENT:
        return False
    argument = next((obj for obj in objects[cut.end :] if not (is_a(obj, tuple) or is_a(obj, list))), None)
    return argument is not None and not is_tensor(argument)


_NAMES: Final = (EdgeKind.GLOBAL, EdgeKind.CLASS_ATTRIBUTE)


def registers_itself(obj: Any, way: Sequence[Step]) -> bool:
    """Return True if a method of an object's class uses the variable that holds the container of the object.

    Args:
        obj: what the container got.
        way: the references that lead to the container.
    """
    name = next((step.edge.name for step in reversed(way) if step.edge.kind in _NAMES), None)
    if name is None or is_tensor(obj):
        return False
    functions = (
        value
        for base in mro_of(type(obj))
        for value in type_dict(base).values()
        if type(value) is FunctionType
    )
    return any(name in function.__code__.co_names for function in functions)


_DTYPE: Final = np.ndarray.__dict__["dtype"]


def are_old(snapshot: Snapshot, chain: Sequence[int]) -> list[bool]:
    """Return for each object of a chain from a root whether it existed before the runs."""
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
    """Return True for a dictionary, or an array of objects, that is not itself an entry of a container."""
    if at == 0 or not _may_hide_its_age(snapshot.objects[chain[at]]):
        return False
    steps = steps_of(snapshot, chain[: at + 1])
    return not steps or not steps[-1].edge.kind.row.is_entry


def _may_hide_its_age(obj: Any) -> bool:
    cls = type(obj)
    return cls is dict or (cls is np.ndarray and _DTYPE.__get__(obj) == np.object_)
