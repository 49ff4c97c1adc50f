"""Describe an object as a `Vertex`. User code cannot intercept the reads."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import _lru_cache_wrapper, partial
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.tensors import TENSOR_DICT
from memwatch.containers import ALL
from memwatch.heap.classes import class_ids, derives, is_a
from memwatch.heap.names import (
    class_place,
    instance_dict,
    is_weak_key_class,
    lacks_weak_slot,
    name_in_code,
    short_qualname,
    type_name,
)
from memwatch.heap.tensors import (
    Capsule,
    capsule_address,
    is_node,
    is_python_node,
    mro_of,
    quiet,
    shape_of,
    storage_bytes,
)
from memwatch.kinds.edges import Vertex, VertexKind
from memwatch.signal_handlers import pass_on
from memwatch.words.edges import DLPACK_CAPSULE, vertex_phrase

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_KEY: Final = 60  # characters of a dictionary key; a guess
_MAX_KEY_PARTS: Final = 4  # entries of a tuple that is a dictionary key; a guess
_WRITTEN: Final = class_ids(str, int, float, bool, bytes, type(None))
"""Keys of dictionaries that are shown as Python writes them."""


def describe(obj: object) -> str:
    """Return the words for an object: ``Tensor [8, 16] float32``, ``f (train.py:12)``, ``dict of 3``."""
    return vertex_phrase(vertex_of(obj))


def vertex_of(obj: object) -> Vertex:
    """Return the description of an object, which keeps nothing of it alive."""
    cls = type(obj)
    special = _BY_TYPE.get(id(cls))
    if special is not None:
        return special(obj)
    if derives(cls, torch.Tensor):
        return _tensor(obj)
    if derives(cls, type):
        return Vertex(VertexKind.CLASS, type_name(obj), name_in_code=name_in_code(obj))  # type: ignore[arg-type]
    for base, make in _BY_BASE:
        if derives(cls, base):
            return make(obj)
    if is_node(obj):
        return Vertex(VertexKind.CTX if is_python_node(obj) else VertexKind.NODE, type_name(cls))
    return Vertex(
        VertexKind.OBJECT,
        type_name(cls),
        name_in_code=name_in_code(cls),
        is_strong=lacks_weak_slot(cls),
    )


def instance_of(obj: object) -> Vertex:
    """Return an object as the owner of its attributes: by its class, whatever it contains."""
    kind = VertexKind.CTX if is_python_node(obj) else VertexKind.OBJECT
    if is_a(obj, BaseException):
        kind = VertexKind.EXCEPTION
    cls = type(obj)
    bases = tuple((type_name(base), class_place(base)[0]) for base in mro_of(cls)[1:] if base is not object)
    return Vertex(kind, type_name(cls), name_in_code=name_in_code(cls), bases=bases)


def function_vertex(function: FunctionType) -> Vertex:
    """Return a function with the file and line of its definition."""
    code = function.__code__
    name = short_qualname(function.__qualname__)
    return Vertex(VertexKind.FUNCTION, name, code.co_filename, code.co_firstlineno)


def frame_vertex(frame: FrameType, thread: str = "") -> Vertex:
    """Return a running or suspended call with the line it has reached."""
    code = frame.f_code
    return Vertex(VertexKind.FRAME, code.co_name, code.co_filename, frame.f_lineno, thread=thread)


def module_vertex(module: Any) -> Vertex:
    """Return a module by its ``__name__``; nameless if that is not a text."""
    name = (instance_dict(module) or {}).get("__name__")
    return Vertex(VertexKind.MODULE, name if type(name) is str else "")


def key_text(key: object) -> str:
    """Return a dictionary key as Python writes it, without calling a user's ``__repr__``."""
    if id(type(key)) in _WRITTEN:
        text = repr(key)
        return text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}..."
    if type(key) is tuple:
        return f"({', '.join(key_text(part) for part in key[:_MAX_KEY_PARTS])})"
    return describe(key)


def key_vertex(key: object) -> Vertex | None:
    """Return the description of a dictionary key; None for a number, a text or another constant."""
    if id(type(key)) in _WRITTEN:
        return None
    vertex = vertex_of(key)
    is_weak_key = vertex.kind is VertexKind.OBJECT and is_weak_key_class(type(key))
    return replace(vertex, is_weak_key=True) if is_weak_key else vertex


def _tensor(tensor: Any) -> Vertex:
    namespace = TENSOR_DICT
    name = type_name(type(tensor))
    with quiet():
        try:
            shape = tuple(shape_of(tensor))
            dtype = str(namespace["dtype"].__get__(tensor)).removeprefix("torch.")
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # nested and symbolic shapes
            pass_on(error)
            return Vertex(VertexKind.TENSOR, name)
    if any(type(size) is not int for size in shape):  # symbolic: to make a number of it adds a guard
        return Vertex(VertexKind.TENSOR, name)
    return Vertex(VertexKind.TENSOR, name, shape=shape, dtype=dtype)


def _array(array: Any) -> Vertex:
    shape, dtype = (np.ndarray.__dict__[name].__get__(array) for name in ("shape", "dtype"))
    return Vertex(VertexKind.ARRAY, type_name(type(array)), shape=shape, dtype=str(dtype))


def _storage(storage: Any) -> Vertex:
    return Vertex(VertexKind.STORAGE, type_name(type(storage)), nbytes=storage_bytes(storage))


def _cache(wrapper: Any) -> Vertex:
    limit = wrapper.cache_parameters()["maxsize"]
    return Vertex(VertexKind.CACHE, "_lru_cache_wrapper", limit=limit)


def _container(base: type) -> Callable[[Any], Vertex]:
    def make(obj: Any) -> Vertex:
        limit = deque.__dict__["maxlen"].__get__(obj) if base is deque else None
        return Vertex(
            VertexKind.CONTAINER,
            type_name(type(obj)),
            count=base.__len__(obj),  # type: ignore[attr-defined]
            limit=limit,
        )

    return make


def _exception(error: Any) -> Vertex:
    return Vertex(VertexKind.EXCEPTION, type_name(type(error)))


def _method(method: MethodType) -> Vertex:
    return Vertex(VertexKind.METHOD, inner=vertex_of(method.__func__))


def _capsule(capsule: object) -> Vertex:
    is_dlpack = capsule_address(capsule) is not None
    return Vertex(VertexKind.OBJECT, DLPACK_CAPSULE if is_dlpack else type_name(type(capsule)))


def _code(code: CodeType) -> Vertex:
    return Vertex(VertexKind.CODE, code.co_name, code.co_filename, code.co_firstlineno)


def _traceback(traceback: TracebackType) -> Vertex:
    file = traceback.tb_frame.f_code.co_filename
    return Vertex(VertexKind.TRACEBACK, file=file, line=traceback.tb_lineno)


def _suspended(kind: VertexKind, code_name: str) -> Callable[[Any], Vertex]:
    def make(generator: Any) -> Vertex:
        code: CodeType = getattr(generator, code_name)
        name = short_qualname(generator.__qualname__)
        return Vertex(kind, name, code.co_filename, code.co_firstlineno)

    return make


_MAKERS: Final[tuple[tuple[type, Callable[[Any], Vertex]], ...]] = (
    (FunctionType, function_vertex),
    (MethodType, _method),
    (Capsule, _capsule),
    (BuiltinFunctionType, lambda function: Vertex(VertexKind.BUILTIN, function.__name__)),
    (CodeType, _code),
    (FrameType, frame_vertex),
    (TracebackType, _traceback),
    (CellType, lambda _: Vertex(VertexKind.CELL)),
    (GeneratorType, _suspended(VertexKind.GENERATOR, "gi_code")),
    (CoroutineType, _suspended(VertexKind.COROUTINE, "cr_code")),
    (AsyncGeneratorType, _suspended(VertexKind.ASYNC_GENERATOR, "ag_code")),
    (partial, lambda _: Vertex(VertexKind.PARTIAL)),
    (_lru_cache_wrapper, _cache),
    *((sized, _container(sized)) for sized in ALL),
)
_BY_TYPE: Final = {id(cls): make for cls, make in _MAKERS}
_BY_BASE: Final[tuple[tuple[type, Callable[[Any], Vertex]], ...]] = (
    (ModuleType, module_vertex),
    (torch.UntypedStorage, _storage),
    (np.ndarray, _array),
    *((base, _container(base)) for base in ALL),
    (BaseException, _exception),
)
