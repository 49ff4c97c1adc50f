"""The containers of Python: one row for each. Other modules choose from these rows by their properties."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple


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
