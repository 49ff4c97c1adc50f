"""Who refers to a tensor that no variable reaches: climbs from the tensor up, through gc's referrers.

An iterator in a running `for`, the values of a half-made call, the argument tuple of a C call and a context
manager in use lie on an evaluation stack, which gc does not show; they are the tops that nothing refers to.
A tensor whose own references are all accounted for by referrers, or by one owner in C++, has no such top.
"""

from __future__ import annotations

import gc
import sys
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch.heap.edges_of import name_edge
from memwatch.heap.frames import is_own_code, read_locals
from memwatch.heap.names import type_name
from memwatch.heap.tensors import mro_of
from memwatch.record.holders.holder_words import Words
from memwatch.words.edges import edge_phrase

if TYPE_CHECKING:
    from collections.abc import Iterable

_use_count: Final[Any] = torch._C.TensorBase.__dict__["_use_count"]
_MAX_LEVELS: Final = 7
_MAX_TENSORS: Final = 24
_MAX_REFERRERS: Final = 2000
_MAX_YOUNG: Final = 50_000
_OURS: Final = 4  # both dictionaries, the loop's name, the argument of getrefcount; C++ may hold one more
_UNNAMED: Final = "a value that no variable names"
_STACK_TYPES: Final = {
    "enumerate": "the last result of `enumerate`",
    "zip": "the last result of `zip`",
    "map": "an argument of `map`",
    "filter": "an item in `filter`",
    "tuple": "the arguments of a running call",
    "list": "a list that no variable names",
    "dict": "a dictionary that no variable names",
    "list_iterator": "the list of a running loop",
    "tuple_iterator": "the tuple of a running loop",
}


def young_objects() -> list[Any]:
    """Give what gc tracks and has made lately: few objects, and nearly always those that hold a fresh tensor.

    None if they are many, as in a program that collects garbage rarely or by hand.
    """
    if gc.get_count()[0] > _MAX_YOUNG:
        return []
    objects = gc.get_objects(generation=0) + gc.get_objects(generation=1)
    return objects if len(objects) <= _MAX_YOUNG else []


def living_tensors(wanted: dict[int, int], address_of: Any, objects: list[Any]) -> dict[int, Any]:
    """Find one Python tensor for each storage wanted, and take all tensors out of the objects.

    Args:
        wanted: address of a storage -> its number.
        address_of: gives the address of a tensor's storage.
        objects: where to look.

    Returns:
        Storage number -> tensor; storages that only C++ refers to are missing.
    """
    types = np.fromiter(map(id, map(type, objects)), dtype=np.int64, count=len(objects))
    kinds, first = np.unique(types, return_index=True)
    tensor_kinds = []
    for kind, at in zip(kinds.tolist(), first.tolist(), strict=True):
        if torch.Tensor in mro_of(type(objects[at])):
            tensor_kinds.append(kind)  # in a comprehension `objects` would be in a cell that lies in it
    found: dict[int, Any] = {}
    for at in np.flatnonzero(np.isin(types, tensor_kinds)).tolist():
        try:
            number = wanted.get(address_of(objects[at]))
        except (NotImplementedError, RuntimeError, AttributeError):
            number = None
        if number is not None:
            found.setdefault(number, objects[at])
        objects[at] = None
    return found


def in_variables(calls: Iterable[FrameType]) -> set[int]:
    """Give the `id` of each value of running calls; gc does not show what their variables refer to."""
    return {id(value) for call in calls for value in read_locals(call).values()}


def climb(tensors: dict[int, Any], variables: set[int], objects: list[Any] | None = None) -> dict[int, Words]:
    """Say who refers to each tensor.

    Args:
        tensors: storage number -> tensor, held by nothing else here.
        variables: `id` of what variables of running calls refer to.
        objects: which objects may refer to them; by default all that there are.

    Returns:
        Storage number -> holder; kind ``evaluation stack`` where the top is referred to by nothing that gc sees.
    """
    chosen = dict(list(tensors.items())[:_MAX_TENSORS])
    counts = {
        number: sys.getrefcount(tensor) - _OURS - (_use_count(tensor) > 1)
        for number, tensor in chosen.items()
    }
    above: dict[int, Any] = {}
    ours = {id(chosen), id(tensors), id(counts), id(above), id(objects)}
    level: list[Any] = list(chosen.values())
    known = {id(tensor) for tensor in level}
    for _ in range(_MAX_LEVELS):
        ours.add(id(level))
        known.add(id(level))
        fresh = _referrers(level, known, ours, above, objects)
        if not fresh:
            break
        level = fresh
    found = {}
    for number, tensor in chosen.items():
        chain = _chain(tensor, above)
        if id(chain[0]) not in variables:  # a variable of torch's own calls, for the program's were searched
            words = _describe(chain, counts[number])
            if words is not None:
                found[number] = words
    above.clear()
    return found


def _referrers(
    level: list[Any], known: set[int], ours: set[int], above: dict[int, Any], objects: list[Any] | None
) -> list[Any]:
    wanted = {id(obj) for obj in level}
    fresh = []
    for referrer in gc.get_referrers(*level)[:_MAX_REFERRERS] if objects is None else objects:
        held = [id(child) for child in gc.get_referents(referrer) if id(child) in wanted]
        if not held or id(referrer) in ours or id(referrer) in known or _is_own(referrer):
            continue
        known.add(id(referrer))
        for child in held:
            above.setdefault(child, referrer)
        if not (type(referrer) in (FrameType, ModuleType) or type in mro_of(type(referrer))):
            fresh.append(referrer)
    return fresh


def _is_own(referrer: Any) -> bool:
    return type(referrer) is FrameType and is_own_code(referrer.f_code)


def _chain(tensor: Any, above: dict[int, Any]) -> list[Any]:
    chain, met = [tensor], {id(tensor)}
    while (parent := above.get(id(chain[-1]))) is not None and id(parent) not in met:
        chain.append(parent)
        met.add(id(parent))
    return chain[::-1]


def _describe(chain: list[Any], count: int) -> Words | None:
    top = chain[0]
    if len(chain) == 1:
        return Words("evaluation stack", _UNNAMED, "", "") if count > 0 else None
    edges = _names(chain)
    path = "\n".join(edges)
    name = type_name(type(top))
    if type(top) is FrameType:
        return None  # a call in torch or Python: it ends soon, and nobody edits it
    if type(top) is ModuleType or type in mro_of(type(top)):
        return Words("global", edges[0] if edges else name, "", path)
    words = _STACK_TYPES.get(name)
    telling = [edge for edge in edges if not edge.startswith(("item [", "reference from"))]
    if words is None:
        words = telling[-1] if telling else f"a {name} that no variable names"
    return Words("evaluation stack", words, "", path)


def _names(chain: Iterable[Any]) -> list[str]:
    steps, place, edges = list(chain), 0, []
    while place < len(steps) - 1:
        edge, covered = name_edge(steps, place)
        if edge is not None:
            edges.append(edge_phrase(edge))
        place += covered
    return edges
