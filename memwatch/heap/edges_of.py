"""Name one Python reference as a typed edge: of an object, of a running or suspended call, or of a traceback.

The objects that CPython puts between a name and its value are passed over.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import weakref
from collections import deque
from dataclasses import replace
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.jit import Future
from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.heap.assignments import line_in_source
from memwatch.heap.autograd import gradient_of
from memwatch.heap.c_held import items_of_array, results_of
from memwatch.heap.class_checks import class_ids, derives, is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.names import (
    Assignment,
    assignment_place,
    attributes,
    class_place,
    in_interactive_shell,
    instance_dict,
    plain_text,
    type_name,
)
from memwatch.heap.references import MAX_ITEMS, copied_items, position_in
from memwatch.heap.roots import Root, RootKind
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.heap.vertices import (
    frame_vertex,
    function_vertex,
    instance_of,
    key_text,
    module_vertex,
    vertex_of,
)
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_FRAMES: Final = {id(GeneratorType): "gi_frame", id(CoroutineType): "cr_frame"}
"""The attribute with the call of a generator or coroutine, by the `id` of its class."""


def frame_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a call."""
    frame: FrameType = chain[at]
    owner = frame_vertex(frame)
    if chain[at + 1] is frame.f_back:
        return Edge(EdgeKind.CALLER, owner=owner, file=owner.file, line=owner.line), 1
    return _variable(chain, at, frame, owner)


def suspended_edge(chain: Sequence[Any], at: int) -> tuple[Edge | None, int]:
    """Name a reference of a generator or coroutine.

    Up to Python 3.10 its frame stands between it and its variables, later where the program asked for the frame.
    """
    generator = chain[at]
    attribute = _FRAMES.get(id(type(generator)), "ag_frame")
    frame, owner = getattr(generator, attribute), vertex_of(generator)
    if frame is None:
        return Edge(EdgeKind.REFERENCE, owner=owner), 1
    if chain[at + 1] is not frame:
        return _variable(chain, at, frame, owner)
    if at + 2 == len(chain):
        return None, 1
    edge, covered = _variable(chain, at + 1, frame, owner)
    return edge, covered + 1


def traceback_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a traceback: to the call, or to the call inside that."""
    is_call = type(chain[at + 1]) is FrameType
    kind = EdgeKind.TRACEBACK_CALL if is_call else EdgeKind.TRACEBACK_NEXT
    return Edge(kind, owner=vertex_of(chain[at])), 1


def _variable(chain: Sequence[Any], at: int, frame: FrameType, owner: Vertex) -> tuple[Edge, int]:
    """Name a reference of a call: a variable, directly or through a cell, or a value without a name yet."""
    child = chain[at + 1]
    kind, found, covered = EdgeKind.TEMPORARY, None, 1
    for name, value in read_locals(frame).items():
        in_cell = type(child) is CellType and _cell_holds(child, value)
        if value is child or in_cell:
            kind, found = EdgeKind.LOCAL, name
            covered = 2 if in_cell and at + 2 < len(chain) else 1
            break
    return Edge(kind, found, owner=owner, file=frame.f_code.co_filename, line=frame.f_lineno), covered


def _cell_holds(cell: CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError as error:
        pass_on(error)
        return False


Named = tuple["Edge | None", int]
"""An edge without its target, and how many references of the chain it covers; None where it needs no telling."""

_SHELL_RESULTS: Final = ("_", "__", "___")
LAST_EXCEPTION: Final = ("last_value", "last_exc", "last_traceback")
_ORDERED: Final = (tuple, list, deque)
_ORDERED_IDS: Final = class_ids(*_ORDERED)
_SELF_DESCRIPTORS: Final = ("__dict__", "__weakref__")
_OF_PARTIALS: Final = ("func", "args", "keywords")


def name_edge(chain: Sequence[Any], at: int) -> Named:
    """Name the reference from ``chain[at]`` onwards.

    Args:
        chain: objects, each referring to the next.
        at: place of the referring object.

    Returns:
        The edge, and the number of references of the chain that it covers: an instance, its dictionary and a value
            are one attribute. The edge is None if reports leave this reference out.
    """
    parent = chain[at]
    cls = type(parent)
    namer = _NAMER_OF.get(id(cls))
    if namer is None:
        found = (_NAMER_OF.get(id(base)) for base in mro_of(cls))
        namer = _class if derives(cls, type) else next(filter(None, found), _instance)
    return namer(chain, at) or _instance(chain, at) or (_plain(vertex_of(parent)), 1)


def _plain(owner: Vertex) -> Edge:
    return Edge(EdgeKind.REFERENCE, owner=owner)


def _at_owner(kind: EdgeKind, name: str | None, owner: Vertex) -> Edge:
    """Return an edge with the place of its owner as the place to edit."""
    return Edge(kind, name, owner=owner, file=owner.file, line=owner.line)


def _after(chain: Sequence[Any], at: int, steps: int) -> Any:
    return chain[at + steps] if at + steps < len(chain) else None


def _key_of(mapping: object, value: object) -> tuple[bool, Any]:
    if not is_a(mapping, dict):  # the tables of scripted modules are in C++
        return False, None
    table: dict[Any, Any] = mapping  # type: ignore[assignment]
    return next(
        ((True, key) for key, held in copied_items(table, dict.items) if held is value), (False, None)
    )


def _root(chain: Sequence[Any], at: int) -> Named | None:
    root: Root = chain[at]
    child = chain[at + 1]
    if root.kind is RootKind.MODULES:
        return None, 1
    for held in root.entries:
        if held.value is child:
            return _global(chain, at + 1, 1, held.edge.owner) if held.is_namespace else (held.edge, 1)
    return Edge(EdgeKind.REFERENCE), 1


def _global(
    chain: Sequence[Any], at: int, before: int, owner: Vertex | None, reader: Vertex | None = None
) -> Named | None:
    """Name a value of a module's namespace, the dictionary being ``chain[at]``."""
    namespace, value = chain[at], _after(chain, at, 1)
    found, name = _key_of(namespace, value)
    if not found:
        return None
    text = plain_text(name)
    module = owner.name if owner is not None and owner.kind is VertexKind.MODULE and reader is None else ""
    if text in LAST_EXCEPTION and module == "sys":
        return Edge(EdgeKind.LAST_EXCEPTION, name), before + 1
    if text in ("Out", "_oh") and in_interactive_shell():
        return Edge(EdgeKind.OUTPUT_HISTORY, name), before + 1
    if text in _SHELL_RESULTS and (in_interactive_shell() or module == "builtins"):
        return Edge(EdgeKind.SHELL_RESULT, name), before + 1
    file = namespace.get("__file__") if type(namespace) is dict else None
    where = file if type(file) is str else None
    line = line_in_source(where, text, 0) if where is not None and text is not None else 0
    return Edge(EdgeKind.GLOBAL, name, owner=owner, file=where, line=line or None, reader=reader), before + 1


def _module(chain: Sequence[Any], at: int) -> Named | None:
    if type(chain[at + 1]) is dict:
        return _global(chain, at + 1, 1, module_vertex(chain[at]))
    return None


def _function(chain: Sequence[Any], at: int) -> Named | None:
    function: FunctionType = chain[at]
    child, owner = chain[at + 1], function_vertex(function)
    if child is function.__closure__ and child is not None:
        cell = _after(chain, at, 2)
        names = [
            name for name, held in zip(function.__code__.co_freevars, child, strict=False) if held is cell
        ]
        consumed = 3 if _after(chain, at, 3) is not None else 2
        return _at_owner(EdgeKind.CLOSURE_CELL, names[0] if names else None, owner), consumed
    if child is function.__globals__:
        module = Vertex(VertexKind.MODULE, plain_text(function.__module__) or str(None))
        return _global(chain, at + 1, 1, module, owner)
    if child is function.__defaults__:
        return _at_owner(EdgeKind.DEFAULT_ARGUMENT, _default_name(chain, at), owner), 2
    if child is function.__kwdefaults__:
        _, name = _key_of(child, _after(chain, at, 2))
        return _at_owner(EdgeKind.DEFAULT_ARGUMENT, name, owner), 2
    if child is function.__dict__:
        _, name = _key_of(child, _after(chain, at, 2))
        return _at_owner(EdgeKind.ATTRIBUTE, name, owner), 2
    return _at_owner(EdgeKind.REFERENCE, None, owner), 1


def _default_name(chain: Sequence[Any], at: int) -> str | None:
    function: FunctionType = chain[at]
    defaults = function.__defaults__
    values = () if defaults is None else tuple(tuple.__iter__(defaults))
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(values) :]
    value = _after(chain, at, 2)
    return next((name for name, held in zip(names, values, strict=False) if held is value), None)


def _class(chain: Sequence[Any], at: int) -> Named | None:
    cls, child = chain[at], chain[at + 1]
    owner = vertex_of(cls)
    # A bounded search goes from the class to the value; gc shows the class's dictionary between the two.
    is_base = any(base is child for base in mro_of(cls))
    values = () if is_base else list(type_dict(cls).items())
    name = next((name for name, value in values if value is child), None)
    kind, covered = (EdgeKind.REFERENCE if name is None else EdgeKind.CLASS_ATTRIBUTE), 1
    if name is None and type(child) is dict:
        found, name = _key_of(child, _after(chain, at, 2))
        if found:
            if cls is weakref.finalize and type(name) is str and name == "_registry":
                return Edge(EdgeKind.FINALIZER_REGISTRY), 2
            kind, covered = _class_entry_kind(cls, name), 2
    if name is None and type(child) is tuple:
        kind, covered = EdgeKind.CLASS_BASES, min(2, len(chain) - 1 - at)
    place = assignment_place(cls, name) if type(name) is str else Assignment(class_place(cls)[0], None)
    return Edge(kind, name, owner=owner, file=place.file, line=place.line), covered


def _class_entry_kind(cls: type, name: object) -> EdgeKind:
    text = plain_text(name)
    if text in _SELF_DESCRIPTORS:  # every class has them, and each refers to its class
        return EdgeKind.CLASS_DESCRIPTOR
    is_attribute = text is not None and text in type_dict(cls)
    return EdgeKind.CLASS_ATTRIBUTE if is_attribute else EdgeKind.CLASS_ENTRY


def _method(chain: Sequence[Any], at: int) -> Named:
    method: MethodType = chain[at]
    is_self = chain[at + 1] is method.__self__
    kind = EdgeKind.BOUND_SELF if is_self else EdgeKind.BOUND_FUNCTION
    return Edge(kind, owner=vertex_of(method)), 1


def _partial(chain: Sequence[Any], at: int) -> Named:
    bound: functools.partial[Any] = chain[at]
    function, args, keywords = (type_dict(functools.partial)[name].__get__(bound) for name in _OF_PARTIALS)
    child, value = chain[at + 1], _after(chain, at, 2)
    owner = replace(vertex_of(bound), kind=VertexKind.PARTIAL, inner=vertex_of(function))
    if child is args and value is not None:
        return Edge(EdgeKind.PARTIAL_ARGUMENT, position=position_in(child, tuple, value), owner=owner), 2
    if child is keywords and value is not None:
        return Edge(EdgeKind.PARTIAL_ARGUMENT, _key_of(child, value)[1], owner=owner), 2
    return _plain(owner), 1


def _exception(chain: Sequence[Any], at: int) -> Named | None:
    error, child = chain[at], chain[at + 1]
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(error) is child:
            kind = EdgeKind.EXCEPTION_ARGS if name == "args" else EdgeKind.EXCEPTION_FIELD
            return Edge(kind, name, owner=Vertex(VertexKind.EXCEPTION, type_name(type(error)))), 1
    return None


def _mapping(chain: Sequence[Any], at: int) -> Named:
    mapping, child = chain[at], chain[at + 1]
    found, key = _key_of(mapping, child)
    owner = vertex_of(mapping)
    if found:
        return Edge(EdgeKind.VALUE, key_text(key), owner=owner), 1
    if any(held is child for held in copied_items(mapping, dict.keys)):
        return Edge(EdgeKind.KEY, owner=owner), 1
    return _instance(chain, at) or (_plain(owner), 1)


def _sequence(chain: Sequence[Any], at: int) -> Named | None:
    items, child = chain[at], chain[at + 1]
    cls: type = type(items)
    kind = cls if id(cls) in _ORDERED_IDS else next(kind for kind in _ORDERED if derives(cls, kind))
    position = position_in(items, kind, child)
    if position is None:
        return None
    fields = None if kind is cls else type_dict(cls).get("_fields")
    if type(fields) is tuple and position < len(fields):
        return Edge(EdgeKind.FIELD, fields[position], owner=instance_of(items)), 1
    return Edge(EdgeKind.ITEM, position=position, owner=vertex_of(items)), 1


def _set(chain: Sequence[Any], at: int) -> Named:
    return Edge(EdgeKind.MEMBER, owner=vertex_of(chain[at])), 1


_KEYS_OF_CALLS: Final = class_ids(tuple, type(functools._make_key((), {"a": 1}, typed=False)))
"""The classes of the keys that `functools.lru_cache` makes of a call's arguments."""


def _lru_cache(chain: Sequence[Any], at: int) -> Named | None:
    wrapper, child = chain[at], chain[at + 1]
    attributes = instance_dict(wrapper) or {}
    function = attributes.get("__wrapped__")
    if child is attributes or child is function:
        return None
    owner = replace(vertex_of(wrapper), inner=None if function is None else vertex_of(function))
    is_key = id(type(child)) in _KEYS_OF_CALLS
    return Edge(EdgeKind.CACHE_ARGUMENT if is_key else EdgeKind.CACHE_RESULT, owner=owner), 1


def _context(chain: Sequence[Any], at: int) -> Named | None:
    # a context keeps its values in a tree of C nodes: name the variable and pass over the tree
    for steps, value in enumerate(chain[at + 1 :], start=1):
        for variable, held in chain[at].items():
            if held is value:
                owner = Vertex(VertexKind.CONTEXT, type_name(type(chain[at])))
                return Edge(EdgeKind.CONTEXT_VARIABLE, variable.name, owner=owner), steps
    return None


def _future(chain: Sequence[Any], at: int) -> Named | None:
    future, child = chain[at], chain[at + 1]
    if is_a(future, asyncio.Task) and asyncio.Task.get_coro(future) is child:
        return Edge(EdgeKind.COROUTINE, owner=vertex_of(future)), 1
    for name in ("_result", "_exception", "_callbacks", "_loop", "_context"):
        descriptor = type_dict(asyncio.Future).get(name)
        if type(descriptor) is GetSetDescriptorType and descriptor.__get__(future) is child:
            return Edge(EdgeKind.ATTRIBUTE, name, owner=vertex_of(future)), 1
    return _instance(chain, at)


def _thread_local(chain: Sequence[Any], at: int) -> Named | None:
    # local -> its dictionaries by thread -> the dictionary of one thread -> value
    values, value = _after(chain, at, 2), _after(chain, at, 3)
    if chain[at + 1] is instance_dict(chain[at]):
        return _instance(chain, at)  # the dictionary of this thread, which a bounded search reads itself
    if type(values) is not dict:
        return None
    found, name = _key_of(values, value)
    return (Edge(EdgeKind.THREAD_LOCAL, name), 3) if found else None


def _instance(chain: Sequence[Any], at: int) -> Named | None:
    parent, child = chain[at], chain[at + 1]
    cls = type(parent)
    owner = instance_of(parent)
    if child is cls:
        return Edge(EdgeKind.CLASS_OF, owner=owner), 1
    values = instance_dict(parent)
    if child is values and values is not None:
        found, name = _key_of(values, _after(chain, at, 2))
        if found:
            return _attribute(chain, at, name, owner, covered=2)
        return Edge(EdgeKind.INSTANCE_DICT, owner=owner, file=class_place(cls)[0]), 1
    for name, value in attributes(parent):
        if value is child:
            return _attribute(chain, at, name, owner, covered=1)
    return None


def _attribute(chain: Sequence[Any], at: int, name: str, owner: Vertex, *, covered: int) -> Named:
    text = plain_text(name)
    cls, kind = type(chain[at]), None if text is None else _MODULE_TABLES.get(text)
    table, value = _after(chain, at, covered), _after(chain, at, covered + 1)
    is_table = kind is not None and derives(cls, torch.nn.Module) and value is not None
    found, key = _key_of(table, value) if is_table else (False, name)
    kind, name, covered = (kind, key, covered + 1) if found else (EdgeKind.ATTRIBUTE, name, covered)
    text = plain_text(name)
    place = Assignment(class_place(cls)[0], None) if text is None else assignment_place(cls, text)
    return Edge(
        kind or EdgeKind.ATTRIBUTE,
        name,
        owner=owner,
        file=place.file,
        line=place.line,
        of_argument=place.of_argument,
    ), covered


def _array(chain: Sequence[Any], at: int) -> Named | None:
    if chain[at + 1] is np.ndarray.__dict__["base"].__get__(chain[at]):
        return Edge(EdgeKind.NUMPY_BASE), 1
    position = position_in(items_of_array(chain[at], MAX_ITEMS), list, chain[at + 1])
    return (
        None if position is None else (Edge(EdgeKind.ITEM, position=position, owner=vertex_of(chain[at])), 1)
    )


def _torch_future(chain: Sequence[Any], at: int) -> Named | None:
    is_result = any(result is chain[at + 1] for result in results_of(chain[at]))
    return (Edge(EdgeKind.FUTURE_RESULT, owner=vertex_of(chain[at])), 1) if is_result else None


def _gradient(chain: Sequence[Any], at: int) -> Named | None:
    is_one = is_a(chain[at + 1], torch.Tensor) and gradient_of(chain[at]) is chain[at + 1]
    return (Edge(EdgeKind.GRAD), 1) if is_one else None


_MODULE_TABLES: Final = {
    PARAMETERS: EdgeKind.PARAMETER,
    BUFFERS: EdgeKind.BUFFER,
    MODULES: EdgeKind.SUBMODULE,
}
_NAMERS: Final[dict[type, Callable[[Sequence[Any], int], Named | None]]] = {
    Root: _root,
    ModuleType: _module,
    FunctionType: _function,
    CellType: lambda _chain, _at: (Edge(EdgeKind.CELL_CONTENTS), 1),
    MethodType: _method,
    functools.partial: _partial,
    FrameType: frame_edge,
    GeneratorType: suspended_edge,
    CoroutineType: suspended_edge,
    AsyncGeneratorType: suspended_edge,
    TracebackType: traceback_edge,
    BaseException: _exception,
    functools._lru_cache_wrapper: _lru_cache,
    dict: _mapping,
    list: _sequence,
    tuple: _sequence,
    deque: _sequence,
    threading.local: _thread_local,
    contextvars.Context: _context,
    asyncio.Future: _future,
    np.ndarray: _array,
    Future: _torch_future,
    torch.Tensor: _gradient,
    set: _set,
    frozenset: _set,
}
_NAMER_OF: Final = {id(cls): namer for cls, namer in _NAMERS.items()}
