"""Find parts that a block added to a module beside older parts of their kind: a growing model, not one being built.

The third entry of a `ModuleList` that had two counts as an item of a list. A part with a name of its own is the
model's state. So is everything inside a new module, unless it wraps a module that wraps one of its class. The
program's own lists, deques, sets and dictionaries are treated alike: one more model, or object with a model in it,
beside older ones of its class counts as an entry.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.edges import EdgeKind
from memwatch.heap.class_checks import is_a
from memwatch.heap.names import instance_dict, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.heap.snapshot import Snapshot

ENTRIES: Final = frozenset({EdgeKind.ITEM, EdgeKind.VALUE, EdgeKind.KEY, EdgeKind.MEMBER})
"""References of the program's containers to what they hold."""
_NUMBER: Final = re.compile(r"\d+")
_MOST_ENTRIES: Final = 1_000
"""Entries that are looked at, from the newest on: a call that adds more than these is no matter."""


def added_parts(snapshot: Snapshot) -> set[int]:
    """Return the ids of the modules, parameters and buffers that older modules got as one more of a series."""
    found: set[int] = set()
    for module in snapshot.instances(torch.nn.Module):
        if not snapshot.is_young(module):
            parts = list(_one_more(snapshot, module))
        elif _is_wrapped_again(snapshot, module):
            parts = [module]
        else:
            continue
        found.update(id(part) for part in parts)
        found.update(id(part) for top in parts for part in inside(top) if snapshot.is_young(part))
    return found


def _is_wrapped_again(snapshot: Snapshot, module: Any) -> bool:
    """Return True for a young module around older ones of its class, two deep: each call wraps what is there once more.

    Around a single one it may be a model that is being built.
    """
    for _, name, part in entries(module, MODULES):
        if type(part) is type(module) and not snapshot.is_young(part):
            return any(
                name == inner and type(each) is type(part) for _, inner, each in entries(part, MODULES)
            )
    return False


def has_older_of_its_class(snapshot: Snapshot, values: int, entry: int) -> bool:
    """Return True if a container has an older entry of the same class too, by their positions."""
    owner, cls = snapshot.objects[values], type(snapshot.objects[entry])
    others = [id(other) for other in islice(_entries_of(owner), _MOST_ENTRIES) if type(other) is cls]
    return any(map(snapshot.is_old, snapshot.positions(others)))


def _entries_of(owner: object) -> Iterator[object]:
    """Yield what a container has, the newest first where it has an order; runs none of the program's code."""
    for cls in (list, deque):
        if is_a(owner, cls):
            yield from cls.__reversed__(owner)  # type: ignore[arg-type]
    if is_a(owner, dict):
        yield from chain.from_iterable(reversed(dict.items(owner)))  # type: ignore[arg-type]
    if is_a(owner, set):
        yield from set.__iter__(owner)  # type: ignore[arg-type]


def entries(module: Any, *tables: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the entries of a module's tables, each with its table and its name."""
    values = instance_dict(module) or {}
    for name in tables:
        table = values.get(name)
        if is_a(table, dict):
            items = list(dict.items(table))  # type: ignore[arg-type]
            yield from ((table, plain_text(key) or "", value) for key, value in items)  # type: ignore[misc]


def _one_more(snapshot: Snapshot, module: Any) -> Iterator[Any]:
    """Yield the young parts of an old module whose series has an old part."""
    names_vary = is_a(module, torch.nn.ModuleDict)
    older: set[tuple[int, int, str]] = set()
    young: list[tuple[tuple[int, int, str], Any]] = []
    for table, name, part in entries(module, MODULES, PARAMETERS, BUFFERS):
        series = id(table), id(type(part)), "" if names_vary else _NUMBER.sub("*", name)
        if snapshot.is_young(part):
            young.append((series, part))
        else:
            older.add(series)
    numbered = ((series, part) for series, part in young if series in older)
    yield from (part for series, part in numbered if names_vary or "*" in series[2])


def inside(part: Any) -> Iterator[Any]:
    """Yield the modules below one, and the parameters and buffers of them all."""
    todo, seen = [part], {id(part)}
    while todo:
        for _, _, inner in entries(todo.pop(), MODULES, PARAMETERS, BUFFERS):
            if id(inner) not in seen:
                seen.add(id(inner))
                yield inner
                todo += [inner] if is_a(inner, torch.nn.Module) else []
