"""Read the attributes and tables of modules and optimizers. Overrides in their classes are not called.

A program may give a module a `__getattribute__`, a property named `__dict__`, or a subclass of `dict` for a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import nn

from memwatch.heap.classes import is_a
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import type_dict
from memwatch.heap.vertices import key_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ATTRIBUTES: Final[Callable[[Any], dict[str, Any]]] = type_dict(nn.Module)["__dict__"].__get__


def module_dict(module: nn.Module) -> dict[str, Any]:
    """Return the attribute dictionary of a module; empty if the program put a subclass of `dict` there."""
    attributes = _ATTRIBUTES(module)
    return attributes if type(attributes) is dict else {}


def module_dicts(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    """Return the result of `module_dict` for each of many modules, in few calls."""
    return [each if type(each) is dict else {} for each in map(_ATTRIBUTES, modules)]


def table_entries(attributes: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    """Return the entries of a table of a module. Skip entries that are None.

    Args:
        attributes: the attribute dictionary of the module.
        name: name of the table, such as `_parameters`.
    """
    table: Any = attributes.get(name)
    if type(table) is not dict and not is_a(table, dict):
        return []
    return [
        (key if type(key) is str else key_text(key), value)
        for key, value in list(dict.items(table))
        if value is not None
    ]


def optimizer_parts(optimizer: Any) -> tuple[list[dict[Any, Any]] | None, dict[Any, Any] | None]:
    """Return the groups of parameters and the state in an optimizer's own attributes, None for a missing one.

    A wrapper of another optimizer may compute either by a property.
    """
    attributes = instance_dict(optimizer) or {}
    groups: Any = attributes.get("param_groups")
    state: Any = attributes.get("state")
    return (
        [group for group in list.__iter__(groups) if is_a(group, dict)] if is_a(groups, list) else None,
        state if is_a(state, dict) else None,
    )


def is_whole(optimizer: Any) -> bool:
    """Return True for an optimizer that has its groups of parameters and its state in itself."""
    groups, state = optimizer_parts(optimizer)
    return groups is not None and state is not None
