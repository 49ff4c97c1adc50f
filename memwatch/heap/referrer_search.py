"""A search with a limit from tensors to their referrers. It starts at tensors that no variable of the program reaches.

The search goes from each tensor to its referrers, to their referrers and so on. It ends at the top: a module, a class,
or an object without a referrer that gc shows. Such an object lies on an evaluation stack, whose values gc does not
show. Examples are:

- the iterator of a running `for`;
- the arguments of a call whose other arguments are still computed;
- the argument tuple of a C function that runs;
- a context manager whose block runs.

A tensor without referrers lies on an evaluation stack too, unless one owner in C++ has all references to it.
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
    """Return the objects of gc's two young generations. They nearly always include the holders of a new tensor.

    Return an empty list if there are many, as in a program that collects garbage rarely or by hand.
    """
    if gc.get_count()[0] > _MAX_YOUNG:
        return []
    objects = without_empty_dictionaries(gc.get_objects(generation=0) + gc.get_objects(generation=1))
    return objects if len(objects) <= _MAX_YOUNG else []


def suspended_calls() -> list[Any]:
    """Return all generators and coroutines of the process.

    `young_objects` leaves out a generator that a program loops over for a long time.
    """
    objects = gc.get_objects()
    types = ids_of(map(type, objects))
    found = np.flatnonzero(np.isin(types, _SUSPENDED)).tolist()
    calls = [objects[at] for at in found]
    objects.clear()  # this list refers to every container, so gc would list it as a referrer
    return calls


def living_tensors(
    wanted: dict[int, int], address_of: Callable[[Any], int], objects: list[Any]
) -> dict[int, list[Any]]:
    """Return the tensors of each wanted storage, and replace all tensors in `objects` by None.

    Args:
        wanted: address of a storage -> its number.
        address_of: returns the address of a tensor's storage.
        objects: the objects to search.

    Returns:
        Storage number -> its tensors, such as a view and its base. A storage is missing if Python has no tensor of it.
    """
    types = np.fromiter(map(id, map(type, objects)), dtype=np.int64, count=len(objects))
    classes, first = np.unique(types, return_index=True)
    tensor_classes = []
    for cls, at in zip(classes.tolist(), first.tolist(), strict=True):
        if is_a(objects[at], torch.Tensor):
            # not a comprehension: it would need a cell for `objects`, and gc would list the cell as a referrer
            tensor_classes.append(cls)
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
    """Return the path from a top to one of the tensors of each storage.

    A storage has no path if its search ends at a variable of a running call, because other searches find those.

    Args:
        tensors: storage number -> its tensors. Nothing else in memwatch may refer to the tensors.
        variables: `id` of the values of variables of running calls.
        objects: the objects that may be referrers; all objects of the process by default.
        ours: `id` of memwatch's objects that refer to objects of the program.

    Returns:
        Storage number -> path. The path depends on the top:

        - a module: it starts with a `MODULE` edge;
        - a class: it starts with an attribute of the class;
        - an object without a referrer: it starts with an `EVALUATION_STACK` edge, with the object's type as its name.

        If only C++ refers to each tensor of a storage, and does so once, the path is a single `C_CODE` edge. An
        example is the base of a view.
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
        # The caller searched the program's variables already, so this is a variable of a call of torch.
        if is_in_c or id(chain[0]) in variables:
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
    """Return the referrers of some objects that were not met before. Record a referrer of each object in `parents`.

    Args:
        level: the objects.
        known: `id` of the objects met so far. This function adds the referrers.
        ours: `id` of memwatch's objects, which do not count as referrers.
        parents: two tables from the `id` of an object to its referrer. In the first, the referrer was met for the first
            time. In the second, it was met before. For example, a generator has variables for a list and for its item.
            The search meets the generator first as referrer of the item, then as referrer of the list.
        objects: the objects that may be referrers; None for all objects of the process.
    """
    above, beside = parents
    wanted = {id(obj) for obj in level}
    fresh = []
    for referrer in (
        gc.get_referrers(*level)[:_MAX_REFERRERS] if objects is None else _parts_with(wanted, objects)
    ):
        children = gc.get_referents(referrer)
        if wanted.isdisjoint(map(id, children)):
            continue  # comes before the next test, because nearly all objects stop here
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
    """Split a list into parts. Yield the objects of a part if any of them refers to a wanted object.

    One call to gc tests a whole part.
    """
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
    """Return the edges along a chain from its top to a tensor; None if the top is a call of torch or Python."""
    top = chain[0]
    if len(chain) == 1:
        return (Edge(EdgeKind.EVALUATION_STACK),)
    if type(top) is FrameType:
        return None  # the call ends soon, and users cannot edit its code
    edges = name_chain(chain)
    if type(top) is ModuleType:
        return Edge(EdgeKind.MODULE, module_vertex(top).name), *edges
    if is_a(top, type):
        return tuple(edges)
    return Edge(EdgeKind.EVALUATION_STACK, type_name(type(top))), *edges
