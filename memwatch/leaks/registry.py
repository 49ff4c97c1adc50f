"""Recognise a registry among containers: its objects put themselves into it."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from memwatch.edges import EdgeKind
from memwatch.heap.tensors import is_tensor, mro_of, type_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.paths import Step

_NAMES: Final = (EdgeKind.GLOBAL, EdgeKind.CLASS_ATTRIBUTE)


def registers_itself(obj: Any, way: Sequence[Step]) -> bool:
    """Return True if a method of an object's class uses the variable that holds the container of the object.

    Args:
        obj: what the container got.
        way: the references that lead to the container.
    """
    name = next((step.edge.name for step in reversed(way) if step.edge.kind in _NAMES), None)
    if name is None or is_tensor(obj):
        return False
    functions = (
        value
        for base in mro_of(type(obj))
        for value in type_dict(base).values()
        if type(value) is FunctionType
    )
    return any(name in function.__code__.co_names for function in functions)
