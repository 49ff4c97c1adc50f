"""Parts that a block added to a module beside older ones of their kind: a model that grows, not one being built.

The third entry of a `ModuleList` that had two is kept as an item of a list is. A part with a name of its own is the
model's state, as is all that a new module brings along. Likewise a list of the program's: one more model beside older
ones of its class is kept as any item is.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import mro_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memwatch.heap.snapshot import Snapshot

_NUMBER: Final = re.compile(r"\d+")


def added_parts(snapshot: Snapshot) -> set[int]:
    """Return the ids of the modules, parameters and buffers that older modules got as one more of a series."""
    found: set[int] = set()
    for module in snapshot.instances(torch.nn.Module):
        if not snapshot.is_young(module):
            parts = list(_one_more(snapshot, module))
            found.update(id(part) for part in parts)
            found.update(id(part) for top in parts for part in _inside(top) if snapshot.is_young(part))
    return found


def is_of_one_more_model(snapshot: Snapshot, chain: Sequence[int]) -> bool:
    """Return True if a path leads through an old list to a young model, and the list has an old one of its class.

    Args:
        snapshot: the open graph.
        chain: the path, as positions.
    """
    for owner, target in pairwise(chain):
        values, model = snapshot.objects[owner], snapshot.objects[target]
        if type(values) is not list or torch.nn.Module not in mro_of(type(model)):
            continue
        if snapshot.is_old(owner) and snapshot.is_young(model):
            return any(type(other) is type(model) and not snapshot.is_young(other) for other in values)
    return False


def entries(module: Any, *tables: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the entries of a module's tables, each with its table and its name."""
    values = instance_dict(module) or {}
    for name in tables:
        table = values.get(name)
        if type(table) is dict or type(table).__name__ == "OrderedDict":
            yield from ((table, key, value) for key, value in dict.items(table))  # type: ignore[arg-type, misc]


def _one_more(snapshot: Snapshot, module: Any) -> Iterator[Any]:
    """Yield the young parts of an old module whose series has an old part."""
    names_vary = isinstance(module, torch.nn.ModuleDict)
    older: set[tuple[int, type, str]] = set()
    young: list[tuple[tuple[int, type, str], Any]] = []
    for table, name, part in entries(module, MODULES, PARAMETERS, BUFFERS):
        series = id(table), type(part), "" if names_vary else _NUMBER.sub("*", name)
        if snapshot.is_young(part):
            young.append((series, part))
        else:
            older.add(series)
    numbered = ((series, part) for series, part in young if series in older)
    yield from (part for series, part in numbered if names_vary or "*" in series[2])


def _inside(part: Any) -> Iterator[Any]:
    """Yield the modules below one, and the parameters and buffers of them all."""
    todo, seen = [part], {id(part)}
    while todo:
        for _, _, inner in entries(todo.pop(), MODULES, PARAMETERS, BUFFERS):
            if id(inner) not in seen:
                seen.add(id(inner))
                yield inner
                todo += [inner] if isinstance(inner, torch.nn.Module) else []
