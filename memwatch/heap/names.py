"""Read names and attributes of objects without running code that their classes override."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.class_checks import is_a
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_DECORATORS: Final = 16  # of one function: `functools.wraps` notes what each has inside
_TYPE_NAME: Final = type.__dict__["__qualname__"].__get__
class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
"""Return the `__name__` of a class without asking its metaclass."""


def type_name(cls: type) -> str:
    """Return the name of a class without asking its metaclass."""
    name: str = _TYPE_NAME(cls)
    return short_qualname(name)


def short_qualname(qualname: str) -> str:
    """Return a qualified name without the ``<locals>`` that Python writes into it."""
    return str.replace(qualname, "<locals>.", "")


def class_place(cls: type) -> tuple[str | None, int | None]:
    """Return the file and line of the first function defined in a class, or (None, None)."""
    for value in type_dict(cls).values():
        function = _function_of(value)
        module = function.__module__ if type(function) is FunctionType else None
        if type(module) is str and module == _module_of(cls):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    return None, None


def assignment_place(cls: type, name: str) -> tuple[str | None, int | None]:
    """Return the file and line at which the methods of a class first assign an attribute.

    The line is None if none of them does, and the file too if the class has no function of its own.
    """
    file, _ = class_place(cls)
    for base in mro_of(cls):
        for function in map(_function_of, list(type_dict(base).values())):
            if type(function) is FunctionType and name in function.__code__.co_names:
                line = _assigned_at(function.__code__, name)
                if line is not None:
                    return function.__code__.co_filename, line
    return file, None


def _function_of(value: Any) -> Any:
    """Return the function of a static method, of a class method, within decorators; anything else as it is."""
    value = value.__func__ if type(value) is staticmethod or type(value) is classmethod else value
    for _ in range(_MOST_DECORATORS):
        inner = value.__dict__.get("__wrapped__") if type(value) is FunctionType else None
        if type(inner) is not FunctionType:
            break
        value = inner
    return value


@functools.lru_cache(maxsize=1024)
def _assigned_at(code: CodeType, name: str) -> int | None:
    line = None
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line if type(instruction.starts_line) is int else line
        if instruction.opname == "STORE_ATTR" and instruction.argval == name:
            return getattr(getattr(instruction, "positions", None), "lineno", None) or line
    return None


def _module_of(cls: type) -> str | None:
    name = type_dict(cls).get("__module__")
    return name if type(name) is str else None


def plain_text(value: object) -> str | None:
    """Return a text, one of a subclass of `str` as a plain one; None for all else.

    To compare or look up anything else may run its `__eq__` and `__hash__`.
    """
    if type(value) is str:
        return value
    return str.__str__(value) if is_a(value, str) else None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """Return the attribute dictionary of an object, whatever its class overrides."""
    for base in mro_of(type(obj)):
        descriptor = type_dict(base).get("__dict__")
        if type(descriptor) is GetSetDescriptorType or type(descriptor) is MemberDescriptorType:
            try:
                values = descriptor.__get__(obj)
            except (AttributeError, TypeError) as error:
                pass_on(error)
                return None
            return values if type(values) is dict else None
    return None


def attributes(obj: object) -> Iterator[tuple[str, object]]:
    """Yield what an object stores in its dictionary and its slots; properties are not called."""
    yield from list((instance_dict(obj) or {}).items())
    for base in mro_of(type(obj)):
        for name, descriptor in list(type_dict(base).items()):
            if type(descriptor) is MemberDescriptorType and type(name) is str and name != "__dict__":
                try:
                    yield name, descriptor.__get__(obj)
                except AttributeError as error:
                    pass_on(error)
                    continue


def in_interactive_shell() -> bool:
    """Return True if IPython or the plain interactive interpreter runs this process."""
    return "IPython" in sys.modules or hasattr(sys, "ps1")
