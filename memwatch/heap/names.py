"""Say what an object is in a few words, reading only what no user code can intercept."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from pathlib import Path
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch.heap.tensors import is_node, is_tensor, mro_of, quiet, storage_bytes, type_dict
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPE_NAME: Final = type.__dict__["__qualname__"].__get__
_MAX_KEY: Final = 60
_SIZED: Final = (list, tuple, dict, set, frozenset, deque)


def type_name(cls: type) -> str:
    """Return the name of a class without asking its metaclass."""
    name: str = _TYPE_NAME(cls)
    return name.replace("<locals>.", "")


def code_place(code: CodeType) -> str:
    """Return ``file.py:12`` for a function."""
    return place(code.co_filename, code.co_firstlineno)


def place(file: str | None, line: int | None) -> str:
    """Return ``file.py:12``, the file relative to the current directory where it lies inside."""
    if file is None:
        return "?"
    try:
        shown = str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = file
    return f"{shown}:{line}" if line else shown


def function_name(function: FunctionType) -> str:
    """Return ``f (file.py:12)``."""
    return f"{_plain(function.__qualname__)} ({code_place(function.__code__)})"


def _plain(qualname: str) -> str:
    return qualname.replace("<locals>.", "")


def class_place(cls: type) -> tuple[str | None, int | None]:
    """Return the file and line of the first function defined in a class, or (None, None)."""
    for value in type_dict(cls).values():
        function = value.__func__ if type(value) in (staticmethod, classmethod) else value
        if type(function) is FunctionType and function.__module__ == _module_of(cls):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    return None, None


def _module_of(cls: type) -> object:
    return type_dict(cls).get("__module__")


def key_text(key: object) -> str:
    """Return a dictionary key as text, without calling a user's ``__repr__``."""
    if type(key) in (str, int, float, bool, bytes, type(None)):
        text = repr(key)
        return text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}..."
    if type(key) is tuple:
        return f"({', '.join(key_text(part) for part in key[:4])})"
    return describe(key)


def describe(obj: object) -> str:  # noqa: PLR0911 - one return per kind of object
    """Say what an object is: ``Tensor [8, 16] float32``, ``f (train.py:12)``, ``dict of 3``, ``Model``."""
    cls = type(obj)
    if is_tensor(obj):
        return _describe_tensor(obj)
    if cls in _NAMED:
        return str(_NAMED[cls](obj))
    bases = mro_of(cls)
    if type in bases:
        return f"class {type_name(obj)}"  # type: ignore[arg-type]
    if ModuleType in bases:
        return _module_name(obj)
    if torch.UntypedStorage in bases:
        return f"storage of {format_bytes(storage_bytes(obj))}"  # type: ignore[arg-type]
    if is_node(obj):
        return type_name(cls)
    if np.ndarray in bases:
        return _describe_array(obj)
    for kind in _SIZED:
        if kind in bases:
            return f"{type_name(cls)} of {kind.__len__(obj)}{_bound(obj)}"  # type: ignore[arg-type]
    return type_name(cls)


def _bound(obj: object) -> str:
    most = deque.__dict__["maxlen"].__get__(obj) if deque in mro_of(type(obj)) else None
    return "" if most is None else f" (maxlen {most})"


def _describe_array(array: Any) -> str:
    shape, dtype = (np.ndarray.__dict__[name].__get__(array) for name in ("shape", "dtype"))
    return f"{type_name(type(array))} [{', '.join(map(str, shape))}] {dtype}"


def _describe_tensor(tensor: Any) -> str:
    namespace = torch._C.TensorBase.__dict__
    name = type_name(type(tensor))
    with quiet():
        try:
            shape = ", ".join(str(int(size)) for size in namespace["shape"].__get__(tensor))
            dtype = str(namespace["dtype"].__get__(tensor)).removeprefix("torch.")
        except (RuntimeError, TypeError, ValueError, AttributeError):  # nested and symbolic shapes
            return name
    return f"{name} [{shape}] {dtype}"


def _module_name(module: Any) -> str:
    name = ModuleType.__getattribute__(module, "__dict__").get("__name__")
    return f"module {name}" if type(name) is str else "module"


def _generator_name(generator: Any) -> str:
    words = {GeneratorType: "generator", CoroutineType: "coroutine", AsyncGeneratorType: "async generator"}
    code = getattr(generator, _CODE_OF[type(generator)])
    return f"{words[type(generator)]} {_plain(generator.__qualname__)} ({code_place(code)})"


_CODE_OF: Final = {GeneratorType: "gi_code", CoroutineType: "cr_code", AsyncGeneratorType: "ag_code"}
_NAMED: Final[dict[type, Any]] = {
    FunctionType: function_name,
    MethodType: lambda method: f"bound method {describe(method.__func__)}",
    BuiltinFunctionType: lambda function: f"built-in {function.__name__}",
    CodeType: lambda code: f"code of {code.co_name} ({code_place(code)})",
    FrameType: lambda frame: (
        f"call of {frame.f_code.co_name} ({place(frame.f_code.co_filename, frame.f_lineno)})"
    ),
    TracebackType: lambda tb: f"traceback at {place(tb.tb_frame.f_code.co_filename, tb.tb_lineno)}",
    CellType: lambda _: "closure cell",
    GeneratorType: _generator_name,
    CoroutineType: _generator_name,
    AsyncGeneratorType: _generator_name,
    partial: lambda _: "functools.partial",
}


def instance_dict(obj: object) -> dict[str, Any] | None:
    """Return the attribute dictionary of an object, whatever its class overrides."""
    for base in mro_of(type(obj)):
        descriptor = type_dict(base).get("__dict__")
        if descriptor is not None and type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):
            try:
                values = descriptor.__get__(obj)
            except (AttributeError, TypeError):
                return None
            return values if type(values) is dict else None
    return None


def attributes(obj: object) -> Iterator[tuple[str, object]]:
    """Yield what an object stores in its dictionary and its slots; properties are not called."""
    yield from list((instance_dict(obj) or {}).items())
    for base in mro_of(type(obj)):
        for name, descriptor in list(type_dict(base).items()):
            if type(descriptor) is MemberDescriptorType and name != "__dict__":
                try:
                    yield name, descriptor.__get__(obj)
                except AttributeError:
                    continue


def in_interactive_shell() -> bool:
    """Say whether IPython or the plain interactive interpreter runs this process."""
    return "IPython" in sys.modules or hasattr(sys, "ps1")
