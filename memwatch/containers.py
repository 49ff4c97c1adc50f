"""The containers of Python, one row for each, and the objects in numpy arrays.

Other modules choose from the rows by their properties. An array has functions instead, because numpy does not take part
in garbage collection: gc shows neither the object that owns the memory of a view, nor the objects in an array of
objects. These functions run no code of a subclass, and they do not import torch.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np


class Container(NamedTuple):
    """A type of container.

    Attributes:
        base: the type.
        has_keys: whether it maps keys to values.
        is_ordered: whether its items have positions.
        can_grow: whether items can be added to it.
    """

    base: type[Any]
    has_keys: bool
    is_ordered: bool
    can_grow: bool


CONTAINERS: Final = (
    Container(list, has_keys=False, is_ordered=True, can_grow=True),
    Container(tuple, has_keys=False, is_ordered=True, can_grow=False),
    Container(dict, has_keys=True, is_ordered=False, can_grow=True),
    Container(set, has_keys=False, is_ordered=False, can_grow=True),
    Container(frozenset, has_keys=False, is_ordered=False, can_grow=False),
    Container(deque, has_keys=False, is_ordered=True, can_grow=True),
)
ALL: Final = tuple(each.base for each in CONTAINERS)
WITHOUT_KEYS: Final = tuple(each.base for each in CONTAINERS if not each.has_keys)
ORDERED: Final = tuple(each.base for each in CONTAINERS if each.is_ordered)
GROWING: Final = tuple(each.base for each in CONTAINERS if each.can_grow)
LISTS: Final = tuple(each.base for each in CONTAINERS if each.is_ordered and each.can_grow)


_BASE: Final = np.ndarray.__dict__["base"].__get__
_DTYPE: Final = np.ndarray.__dict__["dtype"].__get__


def base_of_array(array: Any) -> Any:
    """Return the object whose memory an array uses; None if the array has memory of its own."""
    return _BASE(array)


def items_of_array(array: Any, limit: int | None = None) -> list[Any]:
    """Return the first objects in an array of objects, all of them by default; none of an array of numbers.

    The array is viewed as one of numpy's own class first: for a subclass, numpy would call `__array_finalize__`.
    """
    if _DTYPE(array) != np.object_:
        return []
    items: list[Any] = np.ndarray.view(array, np.ndarray).reshape(-1)[:limit].tolist()
    return items


def subclasses_of(cls: type) -> list[type]:
    """Return a class and all its subclasses, without running code of a metaclass."""
    return [cls, *chain.from_iterable(map(subclasses_of, type.__subclasses__(cls)))]
