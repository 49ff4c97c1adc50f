"""Count which objects of the program grow along with leaked tensors, by class.

The counts are those of `objgraph.growth`, taken without its collection, which would free the cycles under test,
and without its naming of classes, which runs code of metaclasses.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from memwatch.heap.names import type_name
from memwatch.heap.roots import is_own_module
from memwatch.heap.tensors import TypeFilter, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_CLASSES: Final = 3  # that a leak names
_BUILTIN: Final = "builtins"


def count_by_class(objects: Iterable[object]) -> Counter[type]:
    """Return how many objects there are of each class; cheap beside a snapshot, and no code of the program runs."""
    return Counter(map(type, objects))


def grown_classes(
    before: Mapping[type, int], after: Mapping[type, int], calls: int
) -> tuple[tuple[str, int], ...]:
    """Return the classes of which every call added objects, with the number per call, the most first.

    Tensors and autograd nodes are the leak itself; containers and functions of Python come and go with any call,
    and memwatch's own objects are not the program's.

    Args:
        before: objects by class before the calls.
        after: objects by class after them.
        calls: how many calls lie between.
    """
    is_tensor_or_node = TypeFilter()
    grown = [
        (type_name(cls), (after[cls] - before.get(cls, 0)) // calls)
        for cls in after
        if after[cls] - before.get(cls, 0) >= calls
        and _is_of_program(cls)
        and not is_tensor_or_node.wants(cls)
    ]
    return tuple(sorted(grown, key=lambda row: (-row[1], row[0]))[:_MOST_CLASSES])


def _is_of_program(cls: type) -> bool:
    module = type_dict(cls).get("__module__")
    return type(module) is str and module != _BUILTIN and not is_own_module(module)
