"""Classes whose special methods record that memwatch called them.

A program calls its own methods all the time. So a call is recorded only if the innermost function around it that is
neither torch's nor Python's is memwatch's.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

from memwatch.own_code import CodeOwner, code_owner
from memwatch.record.context import CALL_CODE

CALLS: Counter[str] = Counter()
"""The methods that memwatch called, and the callers."""
_IS_ON = [False]
_RUN_THE_PROGRAM = (
    "record/python/ops.py",
    "record/interception.py",
    "patches.py",
    "leaks/new_storage_mode.py",
)
"""Files of memwatch that run an op or a call of the program: calls from there belong to the program."""

# fmt: off
_ON_INSTANCES = (
    "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "len", "length_hint", "iter", "next", "reversed",
    "contains", "getitem", "missing", "getattr", "getattribute", "repr", "str", "bytes", "format", "dir", "sizeof",
    "index", "int", "float", "complex", "call", "enter", "exit", "copy", "deepcopy", "reduce", "reduce_ex",
    "getstate", "get", "set_name", "instancecheck", "subclasscheck", "mro_entries", "await", "aiter", "add",
    "array", "array_interface", "fspath", "torch_function", "torch_dispatch", "tensor_flatten",
)
_ON_CLASSES = (
    "eq", "ne", "lt", "hash", "bool", "len", "iter", "contains", "getitem", "getattribute", "repr", "str", "format",
    "dir", "instancecheck", "subclasscheck", "sizeof", "or",
)
# fmt: on
SPECIAL_METHODS = tuple(f"__{name}__" for name in _ON_INSTANCES)
METACLASS_METHODS = tuple(f"__{name}__" for name in _ON_CLASSES)
_DEFAULTS: dict[str, Callable[..., Any]] = {
    "__eq__": lambda self, other: True,  # the worst answers
    "__ne__": lambda self, other: False,
    "__hash__": lambda self: 1,
    "__bool__": lambda self: False,
    "__len__": lambda self: 0,
    "__length_hint__": lambda self: 0,
    "__iter__": lambda self: iter(()),
    "__contains__": lambda self, item: True,
    "__instancecheck__": lambda self, instance: True,
    "__subclasscheck__": lambda self, cls: True,
    "__index__": lambda self: 0,
    "__int__": lambda self: 0,
    "__copy__": lambda self: self,
    "__call__": lambda self, *args: None,
    "__array_interface__": lambda self: {},
}


@contextmanager
def recording() -> Iterator[Counter[str]]:
    """Record the calls that memwatch makes in the block."""
    CALLS.clear()
    _IS_ON[0] = True
    try:
        yield CALLS
    finally:
        _IS_ON[0] = False


def note(name: str) -> None:
    """Record a call of a method if memwatch made it."""
    if not _IS_ON[0]:
        return
    frame: FrameType | None = sys._getframe(2)  # who called the method
    while frame is not None:
        file = frame.f_code.co_filename
        owner = code_owner(file)
        if owner is CodeOwner.MEMWATCH:
            passes = frame.f_code is CALL_CODE or any(part in file for part in _RUN_THE_PROGRAM)
            if not passes:
                CALLS[f"{name} from {Path(file).parent.name}/{Path(file).name}:{frame.f_lineno}"] += 1
            return
        if owner is CodeOwner.PROGRAM:
            return
        frame = frame.f_back


def methods(
    label: str, base: type = object, names: Iterable[str] = SPECIAL_METHODS, *, honest: bool = False
) -> dict[str, Any]:
    """Return methods that record their calls, for the body of a class.

    Args:
        label: the name of the class in the record.
        base: the class whose methods are called afterwards, if it has them.
        names: names of the methods.
        honest: whether equality, hash, truth and length come from the base, without added methods.
    """
    found = {name: None if name in _DEFAULTS and not honest else _of_base(base, name) for name in names}
    return {
        name: _method(f"{label}.{name}", name, original or _DEFAULTS.get(name))
        for name, original in found.items()
        if original is not None or not honest
    }


def _of_base(base: type, name: str) -> Any:
    """Return a method of a class.

    None if the method is missing, or if it is the C function that torch treats as missing.
    """
    if not any(name in vars(each) for each in base.__mro__):
        return None
    method = getattr(base, name)
    return None if name.startswith("__torch_") and type(method) is BuiltinFunctionType else method


def _method(label: str, name: str, original: Any) -> Any:
    if name.startswith("__torch_") and original is not None:

        def of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
            note(label)
            return original.__func__(cls, *args, **kwargs)

        return classmethod(of_class)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(label)
        if original is None:
            raise AttributeError(name)
        return original(self, *args, **kwargs)

    return method


def reading(label: str, value: Callable[[Any], Any]) -> property:
    """Return a property that records each reading."""

    def read(self: Any) -> Any:
        note(label)
        return value(self)

    return property(read)


def metaclass(
    label: str, base: type = type, *, honest: bool = False, raises: Iterable[str] = ()
) -> type[type]:
    """Return a metaclass whose methods record their calls.

    Args:
        label: its name in the record.
        base: its base metaclass.
        honest: whether its methods return the results of `type`.
        raises: names of methods that raise after they have recorded their call.
    """
    names = methods(label, base, METACLASS_METHODS, honest=honest)
    names.update({name: _raising(f"{label}.{name}") for name in raises})
    return type(label, (base,), names)


def _raising(label: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        note(label)
        raise ArithmeticError(label)

    return method
