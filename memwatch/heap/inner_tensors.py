"""Find the inner tensors of a wrapper subclass without calling its `__tensor_flatten__`.

That method returns the names of attributes. The program wrote it, so memwatch does not run it. It reads the names in
the method's code object: an attribute counts if it holds a tensor and the method mentions its name.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.classes import ByClass
from memwatch.heap.names import attributes
from memwatch.heap.tensors import is_tensor, mro_of, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from torch import Tensor

_FLATTEN: Final = "__tensor_flatten__"


def inner_tensors(wrapper: Tensor) -> list[Tensor]:
    """Return the tensors that a wrapper consists of.

    Args:
        wrapper: a tensor whose class defines `__tensor_flatten__`.

    Returns:
        The tensors in attributes that the method mentions. If it mentions none of them, for example because it
        computes the names, all tensors in attributes.
    """
    mentioned = _mentioned(type(wrapper))
    found: list[tuple[str, Any]] = [
        (name, value) for name, value in attributes(wrapper) if type(name) is str and is_tensor(value)
    ]
    named = [value for name, value in found if name in mentioned]
    return named or [value for _, value in found]


def _names_in_method(cls: type) -> frozenset[str]:
    method = next((names[_FLATTEN] for names in map(type_dict, mro_of(cls)) if _FLATTEN in names), None)
    return frozenset(_texts(method.__code__)) if type(method) is types.FunctionType else frozenset()


def _texts(code: CodeType) -> Iterator[str]:
    """Yield the texts in the constants of a function, and the names of the attributes that it reads."""
    waiting: list[Any] = [*code.co_names, *code.co_consts]
    while waiting:
        each = waiting.pop()
        if type(each) is str:
            yield each
        elif type(each) is tuple or type(each) is frozenset:
            waiting += each


_mentioned: Final = ByClass(_names_in_method)
