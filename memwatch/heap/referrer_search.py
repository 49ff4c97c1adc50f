"""The bounded search against the references. It starts at tensors that no variable reaches, and finds their owners.

Some values lie on an evaluation stack, which gc does not show: the iterator of a running `for`, the values of a
half-made call, the argument tuple of a C call, and a context manager in use. The search finds such a value as a top:
an object without a referrer. A tensor has no such top if its referrers, or one owner in C++, account for all
references to it.
"""

from __future__ import annotations

import gc
import sys
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.tensors import USE_COUNT
from memwatch.heap.classes import class_ids, ids_of, is_a
from memwatch.heap.frames import is_own_code, read_locals, without_empty_dictionaries
from memwatch.heap.names import type_name
from memwatch.heap.paths import name_chain
from memwatch.heap.vertices import module_vertex
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_LEVELS: Final = 7
"""References that are followed from a tensor upwards. A guess."""
_MAX_TENSORS: Final = 24
"""Storages of one search, the first in the caller's order. A guess."""
_MAX_REFERRERS: Final = 2000
"""Referrers of one level that are examined if all objects are searched. A guess."""
_MAX_YOUNG: Final = 50_000
"""With more young objects, young objects are not searched. A guess: they are no longer few."""
_AT_ONCE: Final = 64
"""Objects that one call to gc tests. Such calls halved the time of a search among young objects."""
_SUSPENDED: Final = list(map(id, (GeneratorType, CoroutineType, AsyncGeneratorType)))
_TOPS: Final = class_ids(FrameType, ModuleType)
# references to each tensor: from the caller's list, from our list and from getrefcount's argument
_OURS: Final = 3
# views of one storage that are searched; with more views, C++ is never reported as the only owner; a guess
_MAX_VIEWS: Final = 8

Path = tuple[Edge, ...]


def young_objects() -> list[Any]:
    """Return the few objects that gc has tracked lately. They nearly always include the holders of a new tensor.

    The list is empty if they are many, as in a program that collects garbage rarely or by hand.
    """
    if gc.get_count()[0] > _MAX_YOUNG:
        return []
    objects = without_empty_dictionaries(gc.get_objects(generation=0) + gc.get_objects(generation=1))
    return objects if len(objects) <= _MAX_YOUNG else []


def suspended_calls() -> list[Any]:
    """Return all generators and coroutines of the process.

    A loop over a generator runs long, so it is not a young object.
    """
    objects = gc.get_objects()
    types = ids_of(map(type, objects))
    found = np.flatnonzero(np.isin(types, _SUSPENDED)).tolist()
    calls = [objects[at] for at in found]
    objects.clear()  # it holds every container there is, perhaps one of the caller's own
    return calls


def living_tensors(
    wanted: dict[int, int], address_of: Callable[[Any], int], objects: list[Any]
) -> dict[int, list[Any]]:
    """Find Python's tensors of each storage wanted, and take all tensors out of the objects.

    Args:
        wanted: address of a storage -> its number.
        address_of: returns the address of a tensor's storage.
        objects: where to look.

    Returns:
        Storage number -> its tensors, as a view and its base; storages that only C++ refers to are missing.
    """
    types = np.fromiter(map(id, map(type, objects)), dtype=np.int64, count=len(objects))
    classes, first = np.unique(types, return_index=True)
    tensor_classes = []
    for cls, at in zip(classes.tolist(), first.tolist(), strict=True):
        if is_a(objects[at], torch.Tensor):
            tensor_classes.append(cls)  # in a comprehension `objects` would be in a cell that lies in it
    found: dict[int, list[Any]] = {}
    for at in np.flatnonzero(np.isin(types, tensor_classes)).tolist():
        try:
            number = wanted.get(address_of(objects[at]))
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            pass_on(error)
            number = None
        if number is not None:
            found.setdefault(number, []).append(objects[at])
        objects[at] = None
    return found


def in_variables(calls: Iterable[FrameType]) -> set[int]:
    """Return the `id` of each value of the variables of running calls, which gc does not show."""
    return {id(value) for call in calls for value in read_locals(call).values()}


def referrer_paths(
    tensors: dict[int, list[Any]], variables: set[int], objects: list[Any] | None = None,
    ours: set[int] | None = None,
) -> dict[int, Path]:  # fmt: skip
    """Return the path to each storage from the top object that leads to one of its tensors.

    Args:
        tensors: storage number -> its tensors; only this dictionary may hold them here.
        variables: `id` of the values of variables of running calls.
        objects: the objects that may refer to them; by default all.
        ours: `id` of other objects of memwatch that refer to the program's.

    Returns:
        Storage number -> path. The path starts with `EVALUATION_STACK`, named by the type of the top, if gc sees no
        referrer of the top. It starts with `MODULE` if a module refers to the top, and else with an entry of a class.
        It is `C_CODE` alone if all tensors have a single owner, in C++, such as the base of a view.
    """
    numbers = [number for number in list(tensors)[:_MAX_TENSORS] for _ in tensors[number][:_MAX_VIEWS]]
    level = [tensor for number in dict.fromkeys(numbers) for tensor in tensors[number][:_MAX_VIEWS]]
    counts = [sys.getrefcount(level[at]) - _OURS - (_owners_in_c(level[at]) > 1) for at in range(len(level))]
    above: dict[int, Any] = {}
    beside: dict[int, Any] = {}
    ours = (ours or set()) | {id(tensors), id(counts), id(above), id(beside), id(objects)}
    ours.update(map(id, tensors.values()))
    chosen, known = level, {id(tensor) for tensor in level}
    for _ in range(_MAX_LEVELS):
        ours.add(id(level))
        known.add(id(level))
        fresh = _referrers(level, known, ours, (above, beside), objects)
        if not fresh:
            break
        level = fresh
    found: dict[int, Path] = {}
    in_c = dict.fromkeys(numbers, True)
    for number, tensor, count in zip(numbers, chosen, counts, strict=True):
        chain = _chain(tensor, above, beside)
        is_in_c = len(chain) == 1 and count <= 0
        in_c[number] &= is_in_c and len(tensors[number]) <= _MAX_VIEWS
        if is_in_c or id(chain[0]) in variables:  # torch's own calls' variables: the program's were searched
            continue
        path = _path(chain)
        if path is not None:
            found.setdefault(number, path)
    found.update((number, (Edge(EdgeKind.C_CODE),)) for number, is_one in in_c.items() if is_one)
    above.clear()
    beside.clear()
    return found


def _owners_in_c(tensor: Any) -> int:
    return 1 if USE_COUNT is None else USE_COUNT(tensor)


def _referrers(
    level: list[Any], known: set[int], ours: set[int], parents: tuple[dict[int, Any], dict[int, Any]],
    objects: list[Any] | None,
) -> list[Any]:  # fmt: skip
    """Return the referrers of the objects of a level, and note for each object who refers to it.

    Args:
        level: the objects.
        known: `id` of objects met so far; this call adds to it.
        ours: `id` of objects of this search.
        parents: the referrers noted so far, in two tables. One has referrers that were met here first. The other has
            referrers that were met before, such as a generator with two variables, an item and the list of the item.
        objects: the objects that may refer to them; None for all.
    """
    above, beside = parents
    wanted = {id(obj) for obj in level}
    fresh = []
    for referrer in (
        gc.get_referrers(*level)[:_MAX_REFERRERS] if objects is None else _parts_with(wanted, objects)
    ):
        children = gc.get_referents(referrer)
        if wanted.isdisjoint(map(id, children)):
            continue  # nearly all: a call in Python for each would cost more than the rest
        if id(referrer) in ours or _is_own(referrer):
            continue
        is_known = id(referrer) in known
        known.add(id(referrer))
        for child in children:
            if id(child) in wanted:
                (beside if is_known else above).setdefault(id(child), referrer)
        if not (is_known or id(type(referrer)) in _TOPS or is_a(referrer, type)):
            fresh.append(referrer)
    return fresh


def _parts_with(wanted: set[int], objects: list[Any]) -> Iterator[Any]:
    """Split a list, and yield the parts with a reference to a wanted object. One call tests a whole part."""
    for start in range(0, len(objects), _AT_ONCE):
        part = objects[start : start + _AT_ONCE]
        if not wanted.isdisjoint(map(id, gc.get_referents(*part))):
            yield from part


def _is_own(referrer: Any) -> bool:
    return type(referrer) is FrameType and is_own_code(referrer.f_code)


def _chain(tensor: Any, above: dict[int, Any], beside: dict[int, Any]) -> list[Any]:
    chain, met = [tensor], {id(tensor)}
    while True:
        parent = above.get(id(chain[-1]))
        parent = beside.get(id(chain[-1])) if parent is None else parent
        if parent is None or id(parent) in met:
            break
        chain.append(parent)
        met.add(id(parent))
    return chain[::-1]


def _path(chain: list[Any]) -> Path | None:
    """Name a chain from its top to a tensor; None for a call of torch or Python, which users cannot edit."""
    top = chain[0]
    if len(chain) == 1:
        return (Edge(EdgeKind.EVALUATION_STACK),)
    if type(top) is FrameType:
        return None  # a call in torch or Python: it ends soon, and users cannot edit it
    edges = name_chain(chain)
    if type(top) is ModuleType:
        return Edge(EdgeKind.MODULE, module_vertex(top).name), *edges
    if is_a(top, type):
        return tuple(edges)
    return Edge(EdgeKind.EVALUATION_STACK, type_name(type(top))), *edges
