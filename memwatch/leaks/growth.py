"""Count the objects of the program that grow along with leaked tensors, by class.

`objgraph.growth` has the same counts. It is not used because it first runs a collection, which would free the cycles
under test, and because it names classes with code of their metaclasses.
"""

from __future__ import annotations

import functools
import gc
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from memwatch.heap.classes import named_classes
from memwatch.heap.names import type_name
from memwatch.heap.roots import is_own_module
from memwatch.heap.tensors import TypeFilter, type_dict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_CLASSES: Final = 3  # that a leak names
_LEAST_COUNTS: Final = 3  # before, and after two calls
_BUILTIN: Final = "builtins"


def grown_classes(counts: Sequence[Mapping[int, int]]) -> tuple[tuple[str, int], ...]:
    """Return the classes to which every call added objects, with the least number per call, the most first.

    Objects that a single call adds, as torch's tables on the first use of an op, do not count, so at least two calls
    are compared. Tensors and autograd nodes are the leak itself. Python's containers and functions come and go with
    any call, and memwatch's own objects do not belong to the program.

    Args:
        counts: objects by class, before the calls and after each.
    """
    if len(counts) < _LEAST_COUNTS:
        return ()
    added_by_class = {
        key: added
        for key in counts[-1]
        if (added := min(after.get(key, 0) - before.get(key, 0) for before, after in pairwise(counts))) > 0
    }
    # the calls' objects are young, unless the program itself ran a collection
    classes = named_classes(added_by_class, functools.partial(gc.get_objects, 0), gc.get_objects)
    is_tensor_or_node = TypeFilter()
    grown = [
        (type_name(cls), added_by_class[key])
        for key, cls in classes.items()
        if _is_of_program(cls) and not is_tensor_or_node.wants(cls)
    ]
    return tuple(sorted(grown, key=lambda row: (-row[1], row[0]))[:_MOST_CLASSES])


def _is_of_program(cls: type) -> bool:
    module = type_dict(cls).get("__module__")
    return type(module) is str and module != _BUILTIN and not is_own_module(module)
