"""The table of how objects of each class refer to other objects: how to follow, describe and spell a reference.

A row of `_SHAPES` has up to three functions for the objects of one class:

- `links` yields the objects that a bounded search visits next.
- `edge` describes one reference as an `Edge`, for a report.
- `expressions` yields the objects in an object, each with its Python code, such as `.name` or `[0]`.

`edge` and `expressions` skip the objects that CPython puts between a name and its value, such as the dictionary of an
instance.

The snapshot of the whole heap takes the references of Python objects from `gc.get_referents`, which is simpler. That is
too slow for a bounded search, which runs inside the user's program: gc also returns every name, code object and class.
So `links` reads the fields of common types itself, such as the dictionary of a module, and calls gc for other types.

Nothing here runs code of the program. Types are found by their real bases, never by `isinstance`. Attributes are read
from their storage, never by `getattr`. Properties, `__iter__` and `__getitem__` of subclasses are not called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import queue
import sys
import threading
import weakref
from collections import OrderedDict, UserDict, UserList, deque
from dataclasses import replace
from itertools import chain, islice, repeat
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
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from memwatch._torch.jit import Future
from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.containers import ALL, ORDERED, WITHOUT_KEYS, base_of_array, items_of_array
from memwatch.heap.autograd import gradient_of
from memwatch.heap.c_held import results_of
from memwatch.heap.classes import class_ids, derives, is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.module_tables import module_dicts
from memwatch.heap.names import (
    Assignment,
    assignment_place,
    attributes,
    class_place,
    in_interactive_shell,
    instance_dict,
    line_in_source,
    plain_text,
    type_name,
)
from memwatch.heap.roots import LAST_EXCEPTION, Root, RootKind, is_tool_class
from memwatch.heap.tensors import Capsule, is_node_type, mro_of, type_dict
from memwatch.heap.vertices import (
    frame_vertex,
    function_vertex,
    instance_of,
    key_text,
    key_vertex,
    module_vertex,
    vertex_of,
)
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.own_code import is_program_code
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


Chain = tuple[Any, ...]
"""Objects, each of which refers to the next.

A chain that `links` yields starts after the object itself: `(attributes, value)` for an attribute.
"""


MAX_ITEMS: Final = 4096
"""The most items of a container that a search reads. A guess."""
_PROBE_ITEMS: Final = 64
"""If a longer container begins with more numbers and texts than this, a search reads only this many. A guess."""
_MAX_TRIES: Final = 8
"""Attempts to copy a container that another thread changes meanwhile. A guess."""
_SEQUENCE_IDS: Final = class_ids(*WITHOUT_KEYS)
_ORDERED_IDS: Final = class_ids(*ORDERED)
_PLAIN: Final = class_ids(*ALL)
_ROWS: Final = class_ids(list, tuple)
"""Types with an array of items that has empty places while C code fills it; see `_is_half_made`."""
OFTEN_EMPTY: Final = class_ids(dict, OrderedDict, set, list)
"""Types that are often empty in an attribute, such as a module's tables of hooks. A search skips the empty ones."""
_TABLES: Final = (PARAMETERS, BUFFERS, MODULES)
_HIDE_ARRAYS: Final = class_ids(np.ndarray, tuple)
"""Types that `_may_hide_arrays` looks for in a container."""
_KEEPERS: Final = (queue.Queue, asyncio.Queue, concurrent.futures.Future, UserDict, UserList)
"""Classes of Python's library that are written in Python and hold objects of the program."""
_NUMBERS_AND_TEXT: Final = class_ids(int, float, str, bool, bytes)
_OF_OPTIMIZERS: Final = ("param_groups", "state")
"""Attributes of an optimizer that a search skips. The recorder already knows their tensors as parameters and state."""


def _is_barren(value: Any) -> bool:
    """Return True for a short plain list or tuple of only numbers and texts. A program may have millions of these."""
    return (
        id(type(value)) in _ROWS
        and len(value) <= _PROBE_ITEMS
        and _NUMBERS_AND_TEXT.issuperset(map(id, map(type, value)))
    )


def tensor_step(_: Any) -> Iterator[Chain]:
    """Yield nothing: a search ends at a tensor."""
    yield from ()


def capsule_step(_: Any) -> Iterator[Chain]:
    """Yield nothing: gc cannot see the references of a C capsule."""
    yield from ()


def _node_links(value: Any) -> Iterator[Chain]:
    # These are the attributes of an autograd `ctx`. The walk along the graph finds a node's other objects.
    attributes = instance_dict(value)
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held


def _module_links(value: Any) -> Iterator[Chain]:
    # Parameters, buffers and submodules are included. For a module that was never called, nothing else leads to them.
    attributes = instance_dict(value) or {}
    for held in list(attributes.values()):
        if id(type(held)) not in OFTEN_EMPTY or held:
            yield attributes, held


def _links_of_module_itself(value: Any) -> Iterator[Chain]:
    # its attributes without parameters, buffers and submodules
    attributes = instance_dict(value) or {}
    tables = {id(attributes.get(name)) for name in _TABLES}
    for held in list(attributes.values()):
        if id(held) not in tables and (id(type(held)) not in OFTEN_EMPTY or held):
            yield attributes, held


def _optimizer_links(value: Any) -> Iterator[Chain]:
    # The program's subclass of an optimizer may have lists of tensors beside `state`.
    attributes = instance_dict(value) or {}
    for name, held in list(dict.items(attributes)):
        if name not in _OF_OPTIMIZERS and (id(type(held)) not in OFTEN_EMPTY or held):
            yield attributes, held


def held_by_modules(modules: list[Any]) -> list[Any]:
    """Return the objects that `_links_of_module_itself` finds for many modules, faster than module by module.

    The result also contains empty containers, which `_links_of_module_itself` skips.
    """
    attributes = module_dicts(modules)
    tables = set(map(id, chain.from_iterable(map(dict.get, attributes, repeat(name)) for name in _TABLES)))
    held = list(chain.from_iterable(map(dict.values, attributes)))
    return [each for key, each in zip(map(id, held), held, strict=True) if key not in tables]


def _array_links(value: Any) -> Iterator[Chain]:
    # The array of `tensor.numpy()` refers to the tensor, and an array of objects to each object. gc shows neither.
    base = base_of_array(value)
    if base is not None:
        yield (base,)
    for held in items_of_array(value, MAX_ITEMS):
        yield (held,)


def _result_links(value: Any) -> Iterator[Chain]:
    # `value` is a `torch.futures.Future`, which an asynchronous collective returns
    for held in results_of(value):
        yield (held,)


def _mapping_links(value: Any) -> Iterator[Chain]:
    if gc.is_tracked(value) or _may_hide_arrays(value, dict.values):
        return chain(_items(value, dict.values), _attribute_links(value))
    return iter(())


def _sequence_links(value: Any) -> Iterator[Chain]:
    if _is_barren(value):
        return iter(())
    cls = type(value)
    kind = cls if id(cls) in _SEQUENCE_IDS else next(base for base in WITHOUT_KEYS if derives(cls, base))
    if gc.is_tracked(value) or _may_hide_arrays(value, kind.__iter__):
        return chain(_items(value, kind.__iter__), _attribute_links(value))
    return iter(())


def _may_hide_arrays(container: Any, iterate: Callable[[Any], Any]) -> bool:
    """Return True if a container that gc does not track may lead to a numpy array, and so to a tensor.

    gc never tracks numbers, texts and numpy arrays. It also stops tracking a dictionary or tuple that contains nothing
    else. So an untracked container may contain an array, and the array may use the memory of a tensor.
    """
    items = copied_items(container, iterate, _PROBE_ITEMS)
    return not _HIDE_ARRAYS.isdisjoint(map(id, map(type, items)))


def _context_links(value: Any) -> Iterator[Chain]:
    for held in list(value.values()):  # no limit: a context has one value for each context variable at most
        yield (held,)


def _items(container: Any, iterate: Callable[[Any], Any]) -> Iterator[Chain]:
    """Return the items of a container; only the first few if it is long and begins with numbers and texts."""
    items = copied_items(container, iterate, MAX_ITEMS)
    if len(items) > _PROBE_ITEMS and _NUMBERS_AND_TEXT.issuperset(
        map(id, map(type, items[: _PROBE_ITEMS + 1]))
    ):
        del items[_PROBE_ITEMS:]
    # `zip` of one list yields chains of one item. It is faster than a generator: a list may have thousands of tensors.
    return zip(items, strict=True)


def copied_items(
    container: Any, iterate: Callable[[Any], Any], limit: int | None = None, tries: int = _MAX_TRIES
) -> list[Any]:
    """Return the items of a container that another thread, or gc, may change during the copy.

    Args:
        container: the container.
        iterate: returns the iterable, as `dict.values` does.
        limit: the number of items to return, from the first; None for all.
        tries: number of attempts; after them the list is empty.
    """
    try:
        return list(islice(iterate(container), limit))
    except RuntimeError as error:
        # Another thread changed the container during the copy. The copy is short, so another attempt mostly succeeds.
        pass_on(error)
        return copied_items(container, iterate, limit, tries - 1) if tries > 1 else []


def position_in(
    items: Any, kind: type[tuple[Any, ...] | list[Any] | deque[Any]], value: object
) -> int | None:
    """Return the position of a value in a tuple, list or deque, or None if unknown.

    Args:
        items: the container; C code may still be filling it.
        kind: its type.
        value: the value to find.
    """
    if _is_half_made(items):
        return None
    for position, held in enumerate(copied_items(items, kind.__iter__)):
        if held is value:
            return position
    return None


def key_of(mapping: object, value: object) -> tuple[bool, Any]:
    """Return True and the key if a dictionary contains a value, else False and None.

    The result is False for an object of another type, such as a table of a scripted module, which is a C++ object.
    """
    if not is_a(mapping, dict):
        return False, None
    table: dict[Any, Any] = mapping  # type: ignore[assignment]
    return next(
        ((True, key) for key, held in copied_items(table, dict.items) if held is value), (False, None)
    )


def ordered_kind(value: object) -> type[tuple[Any, ...] | list[Any] | deque[Any]] | None:
    """Return tuple, list or deque if an object's class is that or a subclass of it; None for other objects."""
    cls = type(value)
    if id(cls) in _ORDERED_IDS:
        return cls  # type: ignore[return-value]
    return next((kind for kind in ORDERED if derives(cls, kind)), None)


def _is_half_made(container: Any) -> bool:
    """Return True for a tuple or list that C code is still filling, as for `f(*(g(x) for x in xs))`.

    Such a container has empty places, and an iteration that reaches an empty place crashes the process.
    `gc.get_referents` skips empty places, so it returns fewer objects than the container's length.
    """
    return id(type(container)) in _ROWS and len(gc.get_referents(container)) < len(container)


def _attribute_links(value: Any) -> Iterator[Chain]:
    """Yield the attributes of an object, unless it is a plain container."""
    if id(type(value)) not in _PLAIN:
        attributes = instance_dict(value)
        if attributes:
            for held in list(attributes.values()):
                yield attributes, held


def _function_links(value: Any) -> Iterator[Chain]:
    function: FunctionType = value
    for cell in function.__closure__ or ():
        for held in gc.get_referents(cell):  # `cell.cell_contents` raises for an empty cell
            yield function.__closure__, cell, held
    # A program may replace these tables by objects of its own subclasses of `tuple` and `dict`. The base classes'
    # methods run no code of a subclass.
    defaults = function.__defaults__
    if defaults is not None:
        for held in tuple.__iter__(defaults):
            yield defaults, held
    for table in (function.__kwdefaults__, function.__dict__):
        if table is not None:
            for held in list(dict.values(table)):
                yield table, held


def exception_step(value: Any) -> Iterator[Chain]:
    """Yield the calls of an exception's traceback, its context, cause, arguments and attributes."""
    fields = BaseException.__dict__
    steps: tuple[Any, ...] = ()
    trace = fields["__traceback__"].__get__(value)
    while trace is not None:
        steps = (*steps, trace)
        yield *steps, trace.tb_frame
        trace = trace.tb_next
    for name in ("__context__", "__cause__", "args"):
        yield (fields[name].__get__(value),)
    yield from _attribute_links(value)


def _frame_links(value: Any) -> Iterator[Chain]:
    for held in read_locals(value).values():
        yield (held,)


def is_program_class(cls: type) -> bool:
    """Return True for a class that the program defines. Its module may be `__main__`, of a script or a notebook."""
    name = type_dict(cls).get("__module__")
    file = _file_of(cls)
    return (type(name) is str and name == "__main__") or (file is not None and is_program_code(file))


def _holds_objects_of_program(cls: type) -> bool:
    """Return True for a class whose objects may refer to objects of the program.

    These are the program's classes, subclasses of `_KEEPERS`, and classes without a Python file, such as C classes.
    """
    file = _file_of(cls)
    return any(derives(cls, keeper) for keeper in _KEEPERS) or file is None or is_program_code(file)


def _file_of(cls: type) -> str | None:
    """Return the file of the module that defines a class, or None for a class in C or in a notebook."""
    name = type_dict(cls).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    file = (instance_dict(module) or {}).get("__file__")
    return file if type(file) is str else None


def _class_links(value: Any) -> Iterator[Chain]:
    if type_dict(value).get("__module__") != "builtins" and _holds_objects_of_program(value):
        for held in list(type_dict(value).values()):
            yield (held,)


def _object_links(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value)
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held
    for held in gc.get_referents(value):
        if held is attributes or type(held) is FrameType or is_a(held, type):
            continue
        # an `itertools.product` over an empty iterable keeps a half-made tuple as long as it lives
        if _is_half_made(held):
            for item in gc.get_referents(held):
                yield held, item
            continue
        # an empty dictionary may be the emptied one of a suspended call: see `without_empty_dictionaries`
        if type(held) is not dict or held:
            yield (held,)


# ---- the edge of a reference


_FRAMES: Final = {id(GeneratorType): "gi_frame", id(CoroutineType): "cr_frame"}
"""The attribute of a generator or coroutine that has its frame, by the `id` of the class."""


def frame_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a call."""
    frame: FrameType = chain[at]
    owner = frame_vertex(frame)
    if chain[at + 1] is frame.f_back:
        return Edge(EdgeKind.CALLER, owner=owner, file=owner.file, line=owner.line), 1
    return _variable_edge(chain, at, frame, owner)


def suspended_edge(chain: Sequence[Any], at: int) -> tuple[Edge | None, int]:
    """Name a reference of a generator or coroutine.

    In Python 3.10 the generator refers to its frame, and the frame to the variables. Since 3.11 it refers to the
    variables directly, and also to the frame if the program has read `gi_frame`.
    """
    generator = chain[at]
    attribute = _FRAMES.get(id(type(generator)), "ag_frame")
    frame, owner = getattr(generator, attribute), vertex_of(generator)
    if frame is None:
        return Edge(EdgeKind.REFERENCE, owner=owner), 1
    if chain[at + 1] is not frame:
        return _variable_edge(chain, at, frame, owner)
    if at + 2 == len(chain):
        return None, 1
    edge, covered = _variable_edge(chain, at + 1, frame, owner)
    return edge, covered + 1


def traceback_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a traceback: to its call, or to the next traceback, which has the call inside that call."""
    is_call = type(chain[at + 1]) is FrameType
    kind = EdgeKind.TRACEBACK_CALL if is_call else EdgeKind.TRACEBACK_NEXT
    return Edge(kind, owner=vertex_of(chain[at])), 1


def _variable_edge(chain: Sequence[Any], at: int, frame: FrameType, owner: Vertex) -> tuple[Edge, int]:
    """Name a reference of a call: a variable, directly or through a cell, or a value that has no name yet."""
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
"""An edge without its target, and the number of references of the chain that it covers.

The edge is None if reports leave the reference out.
"""

_SHELL_RESULTS: Final = ("_", "__", "___")
_SELF_DESCRIPTORS: Final = ("__dict__", "__weakref__")
_OF_PARTIALS: Final = ("func", "args", "keywords")


def _plain(owner: Vertex) -> Edge:
    return Edge(EdgeKind.REFERENCE, owner=owner)


def _at_owner(kind: EdgeKind, name: str | None, owner: Vertex) -> Edge:
    """Return an edge whose line to edit is the line of its owner."""
    return Edge(kind, name, owner=owner, file=owner.file, line=owner.line)


def _after(chain: Sequence[Any], at: int, steps: int) -> Any:
    return chain[at + steps] if at + steps < len(chain) else None


def _root_edge(chain: Sequence[Any], at: int) -> Named | None:
    root: Root = chain[at]
    child = chain[at + 1]
    if root.kind is RootKind.MODULES:
        return None, 1
    for held in root.entries:
        if held.value is child:
            return _global_edge(chain, at + 1, 1, held.edge.owner) if held.is_namespace else (held.edge, 1)
    return Edge(EdgeKind.REFERENCE), 1


def _global_edge(
    chain: Sequence[Any], at: int, before: int, owner: Vertex | None, reader: Vertex | None = None
) -> Named | None:
    """Name a global variable, given the namespace and the value after it in the chain. Return None if it is missing.

    Args:
        chain: objects, each referring to the next.
        at: place of the module's namespace.
        before: number of references between the owner and the namespace.
        owner: the module.
        reader: the function that refers to the namespace; None if the path comes from the module.
    """
    namespace, value = chain[at], _after(chain, at, 1)
    found, name = key_of(namespace, value)
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


def _module_edge(chain: Sequence[Any], at: int) -> Named | None:
    if type(chain[at + 1]) is dict:
        return _global_edge(chain, at + 1, 1, module_vertex(chain[at]))
    return None


def _function_edge(chain: Sequence[Any], at: int) -> Named | None:
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
        return _global_edge(chain, at + 1, 1, module, owner)
    if child is function.__defaults__:
        return _at_owner(EdgeKind.DEFAULT_ARGUMENT, _default_name(chain, at), owner), 2
    if child is function.__kwdefaults__:
        _, name = key_of(child, _after(chain, at, 2))
        return _at_owner(EdgeKind.DEFAULT_ARGUMENT, name, owner), 2
    if child is function.__dict__:
        _, name = key_of(child, _after(chain, at, 2))
        return _at_owner(EdgeKind.ATTRIBUTE, name, owner), 2
    return _at_owner(EdgeKind.REFERENCE, None, owner), 1


def _default_name(chain: Sequence[Any], at: int) -> str | None:
    function: FunctionType = chain[at]
    defaults = function.__defaults__
    values = () if defaults is None else tuple(tuple.__iter__(defaults))
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(values) :]
    value = _after(chain, at, 2)
    return next((name for name, held in zip(names, values, strict=False) if held is value), None)


def _class_edge(chain: Sequence[Any], at: int) -> Named | None:
    cls, child = chain[at], chain[at + 1]
    owner = vertex_of(cls)
    # In a bounded search the value follows the class. In a snapshot the class's dictionary stands between them.
    is_base = any(base is child for base in mro_of(cls))
    values = () if is_base else list(type_dict(cls).items())
    name = next((name for name, value in values if value is child), None)
    kind, covered = (EdgeKind.REFERENCE if name is None else EdgeKind.CLASS_ATTRIBUTE), 1
    if name is None and type(child) is dict:
        found, name = key_of(child, _after(chain, at, 2))
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


def _method_edge(chain: Sequence[Any], at: int) -> Named:
    method: MethodType = chain[at]
    is_self = chain[at + 1] is method.__self__
    kind = EdgeKind.BOUND_SELF if is_self else EdgeKind.BOUND_FUNCTION
    return Edge(kind, owner=vertex_of(method)), 1


def _builtin_edge(chain: Sequence[Any], at: int) -> Named | None:
    method: BuiltinFunctionType = chain[at]
    is_method = chain[at + 1] is method.__self__ and not is_a(method.__self__, ModuleType)
    return (Edge(EdgeKind.BOUND_SELF, owner=vertex_of(method)), 1) if is_method else None


def _token_edge(chain: Sequence[Any], at: int) -> Named | None:
    token: contextvars.Token[Any] = chain[at]
    is_old = chain[at + 1] is token.old_value
    return (Edge(EdgeKind.ATTRIBUTE, "old_value", owner=vertex_of(token)), 1) if is_old else None


def _partial_edge(chain: Sequence[Any], at: int) -> Named:
    bound: functools.partial[Any] = chain[at]
    function, args, keywords = (type_dict(functools.partial)[name].__get__(bound) for name in _OF_PARTIALS)
    child, value = chain[at + 1], _after(chain, at, 2)
    owner = replace(vertex_of(bound), kind=VertexKind.PARTIAL, inner=vertex_of(function))
    if child is args and value is not None:
        return Edge(EdgeKind.PARTIAL_ARGUMENT, position=position_in(child, tuple, value), owner=owner), 2
    if child is keywords and value is not None:
        return Edge(EdgeKind.PARTIAL_ARGUMENT, key_of(child, value)[1], owner=owner), 2
    return _plain(owner), 1


def _exception_edge(chain: Sequence[Any], at: int) -> Named | None:
    error, child = chain[at], chain[at + 1]
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(error) is child:
            kind = EdgeKind.EXCEPTION_ARGS if name == "args" else EdgeKind.EXCEPTION_FIELD
            return Edge(kind, name, owner=Vertex(VertexKind.EXCEPTION, type_name(type(error)))), 1
    return None


def _mapping_edge(chain: Sequence[Any], at: int) -> Named:
    mapping, child = chain[at], chain[at + 1]
    found, key = key_of(mapping, child)
    owner = vertex_of(mapping)
    if found:
        return Edge(EdgeKind.VALUE, key_text(key), owner=owner, key=key_vertex(key)), 1
    if any(held is child for held in copied_items(mapping, dict.keys)):
        return Edge(EdgeKind.KEY, owner=owner), 1
    return _instance_edge(chain, at) or (_plain(owner), 1)


def _sequence_edge(chain: Sequence[Any], at: int) -> Named | None:
    items, child = chain[at], chain[at + 1]
    cls, kind = type(items), ordered_kind(items)
    position = None if kind is None else position_in(items, kind, child)
    if position is None:
        return None
    fields = None if kind is cls else type_dict(cls).get("_fields")
    if type(fields) is tuple and position < len(fields):
        return Edge(EdgeKind.FIELD, fields[position], owner=instance_of(items)), 1
    return Edge(EdgeKind.ITEM, position=position, owner=vertex_of(items)), 1


def _set_edge(chain: Sequence[Any], at: int) -> Named:
    return Edge(EdgeKind.MEMBER, owner=vertex_of(chain[at])), 1


def _lru_cache_edge(chain: Sequence[Any], at: int) -> Named | None:
    wrapper, child = chain[at], chain[at + 1]
    attributes = instance_dict(wrapper) or {}
    function = attributes.get("__wrapped__")
    if child is attributes or child is function:
        return None
    owner = replace(vertex_of(wrapper), inner=None if function is None else vertex_of(function))
    is_argument = type(child) is tuple and _is_key_of_cache(wrapper, child)
    return Edge(EdgeKind.CACHE_ARGUMENT if is_argument else EdgeKind.CACHE_RESULT, owner=owner), 1


def _is_key_of_cache(wrapper: Any, value: object) -> bool:
    """Return True if a tuple is a key of a bounded cache. If it is not, a cached function returned it.

    The cache makes a key of the arguments of each call.
    """
    attributes = instance_dict(wrapper)
    tables = (held for held in gc.get_referents(wrapper) if type(held) is dict and held is not attributes)
    return any(key is value for table in tables for key in copied_items(table, dict.keys))


def _context_edge(chain: Sequence[Any], at: int) -> Named | None:
    # A context keeps its values in a tree of C nodes. Skip the nodes, and name the variable that has the next value.
    for steps, value in enumerate(chain[at + 1 :], start=1):
        for variable, held in chain[at].items():
            if held is value:
                owner = Vertex(VertexKind.CONTEXT, type_name(type(chain[at])))
                return Edge(EdgeKind.CONTEXT_VARIABLE, variable.name, owner=owner), steps
    return None


def _future_edge(chain: Sequence[Any], at: int) -> Named | None:
    future, child = chain[at], chain[at + 1]
    if is_a(future, asyncio.Task) and asyncio.Task.get_coro(future) is child:
        return Edge(EdgeKind.COROUTINE, owner=vertex_of(future)), 1
    for name in ("_result", "_exception", "_callbacks", "_loop", "_context"):
        descriptor = type_dict(asyncio.Future).get(name)
        if type(descriptor) is GetSetDescriptorType and descriptor.__get__(future) is child:
            return Edge(EdgeKind.ATTRIBUTE, name, owner=vertex_of(future)), 1
    return _instance_edge(chain, at)


def _thread_local_edge(chain: Sequence[Any], at: int) -> Named | None:
    # the chain: local, its table of threads, the dictionary of one thread, value
    values, value = _after(chain, at, 2), _after(chain, at, 3)
    if chain[at + 1] is instance_dict(chain[at]):
        return _instance_edge(chain, at)  # a bounded search reads the dictionary of this thread directly
    if type(values) is not dict:
        return None
    found, name = key_of(values, value)
    return (Edge(EdgeKind.THREAD_LOCAL, name), 3) if found else None


def _instance_edge(chain: Sequence[Any], at: int) -> Named | None:
    parent, child = chain[at], chain[at + 1]
    cls = type(parent)
    owner = instance_of(parent)
    if child is cls:
        return Edge(EdgeKind.CLASS_OF, owner=owner), 1
    values = instance_dict(parent)
    if child is values and values is not None:
        found, name = key_of(values, _after(chain, at, 2))
        if found:
            return _attribute_edge(chain, at, name, owner, covered=2)
        return Edge(EdgeKind.INSTANCE_DICT, owner=owner, file=class_place(cls)[0]), 1
    for name, value in attributes(parent):
        if value is child:
            return _attribute_edge(chain, at, name, owner, covered=1)
    return None


def _attribute_edge(chain: Sequence[Any], at: int, name: str, owner: Vertex, *, covered: int) -> Named:
    text = plain_text(name)
    cls, kind = type(chain[at]), None if text is None else _MODULE_TABLES.get(text)
    table, value = _after(chain, at, covered), _after(chain, at, covered + 1)
    is_table = kind is not None and derives(cls, torch.nn.Module) and value is not None
    found, key = key_of(table, value) if is_table else (False, name)
    if found:
        name, covered = key, covered + 1
    text = plain_text(name)
    place = Assignment(class_place(cls)[0], None) if text is None else assignment_place(cls, text)
    return Edge(
        kind if found and kind is not None else EdgeKind.ATTRIBUTE,
        name,
        owner=owner,
        file=place.file,
        line=place.line,
        of_argument=place.of_argument,
    ), covered


def _array_edge(chain: Sequence[Any], at: int) -> Named | None:
    if chain[at + 1] is base_of_array(chain[at]):
        return Edge(EdgeKind.NUMPY_BASE), 1
    position = position_in(items_of_array(chain[at], MAX_ITEMS), list, chain[at + 1])
    return (
        None if position is None else (Edge(EdgeKind.ITEM, position=position, owner=vertex_of(chain[at])), 1)
    )


def _torch_future_edge(chain: Sequence[Any], at: int) -> Named | None:
    is_result = any(result is chain[at + 1] for result in results_of(chain[at]))
    return (Edge(EdgeKind.FUTURE_RESULT, owner=vertex_of(chain[at])), 1) if is_result else None


def _gradient_edge(chain: Sequence[Any], at: int) -> Named | None:
    is_one = is_a(chain[at + 1], torch.Tensor) and gradient_of(chain[at]) is chain[at + 1]
    return (Edge(EdgeKind.GRAD), 1) if is_one else None


_MODULE_TABLES: Final = {
    PARAMETERS: EdgeKind.PARAMETER,
    BUFFERS: EdgeKind.BUFFER,
    MODULES: EdgeKind.SUBMODULE,
}


def _cell_edge(_chain: Sequence[Any], _at: int) -> Named:
    return Edge(EdgeKind.CELL_CONTENTS), 1


def _proxy_edge(_chain: Sequence[Any], _at: int) -> Named:
    return None, 1  # leave out the read-only view of a dictionary, like the dictionary of an instance


# ---- the expression for a reference


_OF_CLASSES: Final = class_ids(
    FunctionType, property, classmethod, staticmethod, MemberDescriptorType, GetSetDescriptorType,
)  # fmt: skip
"""Types of class attributes that cannot lead to a module of the program."""


def _module_expressions(value: Any, most_items: int) -> Iterator[tuple[str, Any]]:
    # without its tables of parameters and buffers, which have names of their own
    for name, held in attributes(value):
        if type(name) is str and name not in _TABLES:
            yield f".{name}", held
    # A module may only hold the models that the program calls, as a GAN holds its generator.
    submodules = (instance_dict(value) or {}).get(MODULES)
    for name, held in copied_items(submodules, dict.items, most_items) if is_a(submodules, dict) else ():
        if type(name) is str and name.isidentifier():
            yield f".{name}", held


def _function_expressions(value: Any, _: int) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        with suppress(ValueError):  # the cell is empty: the variable has no value yet
            yield name, cell.cell_contents


def _class_expressions(value: Any, _: int) -> Iterator[tuple[str, Any]]:
    # without its methods, properties and special names
    for name, held in list(type_dict(value).items()):
        if type(name) is str and not name.startswith("__") and id(type(held)) not in _OF_CLASSES:
            yield f".{name}", held


def _mapping_expressions(value: Any, most_items: int) -> Iterator[tuple[str, Any]]:
    for key, held in copied_items(value, dict.items, most_items):
        if type(key) is str or type(key) is int:
            yield f"[{key!r}]", held


def _sequence_expressions(value: Any, most_items: int) -> Iterator[tuple[str, Any]]:
    kind = list if is_a(value, list) else tuple
    for at, held in enumerate(copied_items(value, kind.__iter__, most_items)):
        yield f"[{at}]", held


def _no_expressions(_: Any, __: int) -> Iterator[tuple[str, Any]]:
    # The expressions are for code that the user pastes. Code that assigns to `hook.keywords['optimizer']` of a partial
    # would not change the program's own variable `optimizer`.
    return iter(())


def _object_expressions(value: Any, _: int) -> Iterator[tuple[str, Any]]:
    for name, held in attributes(value):
        if type(name) is str and not name.startswith("__"):
            yield f".{name}", held


# ---- the table, and how it is read


class Shape(NamedTuple):
    """The references of the objects of one class.

    Attributes:
        base: the class. Its subclasses have the same row, unless an earlier row fits.
        links: yields the objects that an object refers to, for a bounded search. If it is None, the search ends there.
        edge: names the reference to the next object of a chain, given the chain and the position of the object in it.
            If it is None, `name_edge` uses the row of a base class.
        expressions: yields the objects in an object, each with its Python code. If it is None, `expressions_of` uses a
            later row that fits, or the attributes.
    """

    base: type
    links: Callable[[Any], Iterator[Chain]] | None
    edge: Callable[[Sequence[Any], int], Named | None] | None = None
    expressions: Callable[[Any, int], Iterator[tuple[str, Any]]] | None = None


_SHAPES: Final = (
    Shape(Tensor, tensor_step, _gradient_edge),
    Shape(Capsule, capsule_step),
    # a search ends at objects of these classes
    Shape(str, None),
    Shape(bytes, None),
    Shape(int, None),
    Shape(float, None),
    Shape(complex, None),
    Shape(type(None), None),
    Shape(ModuleType, None, _module_edge),
    Shape(CodeType, None),
    Shape(BuiltinFunctionType, None, _builtin_edge),
    Shape(torch.dtype, None),
    Shape(torch.device, None),
    Shape(torch.Size, None, _sequence_edge, _sequence_expressions),
    Shape(torch.UntypedStorage, None),
    Shape(threading.Thread, None),
    # objects of torch, and containers
    Shape(nn.Module, _module_links, None, _module_expressions),
    Shape(torch.optim.Optimizer, _optimizer_links),
    Shape(dict, _mapping_links, _mapping_edge, _mapping_expressions),
    Shape(list, _sequence_links, _sequence_edge, _sequence_expressions),
    Shape(tuple, _sequence_links, _sequence_edge, _sequence_expressions),
    Shape(set, _sequence_links, _set_edge),
    Shape(frozenset, _sequence_links, _set_edge),
    Shape(deque, _sequence_links, _sequence_edge),
    # code and calls
    Shape(FunctionType, _function_links, _function_edge, _function_expressions),
    Shape(BaseException, exception_step, _exception_edge),
    Shape(FrameType, _frame_links, frame_edge),
    Shape(contextvars.Context, _context_links, _context_edge),
    Shape(np.ndarray, _array_links, _array_edge),
    Shape(Future, _result_links, _torch_future_edge),
    Shape(type, _class_links, _class_edge, _class_expressions),
    # a search treats these like objects without a row; only their edges differ
    Shape(MethodType, _object_links, _method_edge),
    Shape(contextvars.Token, _object_links, _token_edge),
    Shape(functools.partial, _object_links, _partial_edge, _no_expressions),
    Shape(functools._lru_cache_wrapper, _object_links, _lru_cache_edge),
    Shape(CellType, _object_links, _cell_edge),
    Shape(MappingProxyType, _object_links, _proxy_edge),
    Shape(GeneratorType, _object_links, suspended_edge),
    Shape(CoroutineType, _object_links, suspended_edge),
    Shape(AsyncGeneratorType, _object_links, suspended_edge),
    Shape(TracebackType, _object_links, traceback_edge),
    Shape(threading.local, _object_links, _thread_local_edge),
    Shape(asyncio.Future, _object_links, _future_edge),
    Shape(Root, _object_links, _root_edge),
)
"""For `links`, the first row counts whose class is the object's class or a base of it. The same is true for
`expressions`, among the rows that have them.

For `edge`, the row of the nearest base class counts. The difference matters for a class that derives from `nn.Module`
and `list`. A search visits its attributes only, but a snapshot also finds its items, and they need names.
"""
_EDGE_OF: Final = {id(shape.base): shape.edge for shape in _SHAPES if shape.edge is not None}
_EXPRESSIONS: Final = tuple(
    (shape.base, shape.expressions) for shape in _SHAPES if shape.expressions is not None
)


def _links_of(cls: type) -> Callable[[Any], Iterator[Chain]] | None:
    for shape in _SHAPES:
        if derives(cls, shape.base):
            return shape.links
    return _node_links if is_node_type(cls) else _object_links


def expressions_of(value: Any, most_items: int) -> Iterator[tuple[str, Any]]:
    """Yield the objects in an object, each with the Python code that gets it, such as `.name`.

    Args:
        value: the object.
        most_items: the most items of a dictionary, list or tuple.
    """
    cls = type(value)
    found = (expressions for base, expressions in _EXPRESSIONS if derives(cls, base))
    return next(found, _object_expressions)(value, most_items)


def step_of(cls: type, *, deep: bool) -> Callable[[Any], Iterator[Chain]] | None:
    """Return the function that yields the next objects of a search, or None if the search ends at a class.

    A search never enters objects of memwatch and of the test runner. For example, the program may have a variable for
    its `profile()`, which holds long tables.

    Args:
        cls: the class.
        deep: True to go from a module into its parameters, buffers and submodules, and to enter objects of classes that
            packages, torch or Python define.
    """
    step = _links_of(cls)
    if step is _module_links and not deep:
        return _links_of_module_itself
    if step in (_object_links, _optimizer_links) and (
        is_tool_class(cls) or not (deep or _holds_objects_of_program(cls))
    ):
        return None
    return step


def is_of_package(cls: type) -> bool:
    """Return True if only a deep search enters objects of a class, because a package, torch or Python defines it."""
    return _links_of(cls) is _object_links and not is_tool_class(cls) and not _holds_objects_of_program(cls)


def name_edge(chain: Sequence[Any], at: int) -> Named:
    """Name the reference from ``chain[at]`` to the next object of the chain.

    Args:
        chain: objects, each referring to the next.
        at: place of the referring object.

    Returns:
        The edge, and the number of references of the chain that it covers. An attribute covers two: from the instance
            to its dictionary, and to the value. The edge is None if reports leave this reference out.
    """
    parent = chain[at]
    cls = type(parent)
    namer = _EDGE_OF.get(id(cls))
    if namer is None:
        found = (_EDGE_OF.get(id(base)) for base in mro_of(cls))
        namer = _class_edge if derives(cls, type) else next(filter(None, found), _instance_edge)
    return namer(chain, at) or _instance_edge(chain, at) or (_plain(vertex_of(parent)), 1)


SHOWN_BY_GC: Final = frozenset((_mapping_links, _sequence_links, _module_links, _object_links))
"""Functions of `step_of` that can be replaced by one call of `gc.get_referents` for many objects at once.

`gc.get_referents` returns all objects that they yield, and more.
"""
MODULE_ITSELF: Final = _links_of_module_itself
"""The function of `step_of` for modules in a search that is not deep."""
DEFINITIONS: Final = (_function_links, _class_links)
"""The functions of `step_of` for functions and classes. Most variables of a module are these, and lead to no tensor."""
