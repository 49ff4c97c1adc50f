"""The references of one object by its real type: the steps of a search that starts at the running calls.

The snapshot of the whole heap only uses `gc.get_referents`, which is simpler. It is too slow for a search inside the
user's program, because it shows every name, code object and class beside the values. For known types, memwatch reads
the dictionaries, slots and fields that keep their values. It uses gc only for the other types.

Nothing here runs code of the program. Types are found by their real bases, never by `isinstance`. Attributes are read
from their storage, never by `getattr`. Properties, `__iter__` and `__getitem__` of subclasses are not called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import queue
import sys
import threading
from collections import OrderedDict, UserDict, UserList, deque
from itertools import chain, islice, repeat
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from memwatch._torch.jit import Future
from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.heap.c_held import items_of_array, results_of
from memwatch.heap.capsules import Capsule
from memwatch.heap.class_checks import class_ids, derives, is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.module_tables import module_dicts
from memwatch.heap.names import instance_dict
from memwatch.heap.roots import is_tool_class
from memwatch.heap.tensors import is_node_type, type_dict
from memwatch.own_code import is_program_code
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Chain = tuple[Any, ...]
"""Objects; each refers to the next."""


MAX_ITEMS: Final = 4096
"""Items of a container that a search reads. A guess."""
_PROBE_ITEMS: Final = 64
"""A longer container is left if so many items at its beginning are all numbers or texts. A guess."""
_MAX_TRIES: Final = 8
"""Attempts to copy a container that another thread changes meanwhile. A guess."""
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_SEQUENCE_IDS: Final = class_ids(*_SEQUENCES)
_PLAIN: Final = class_ids(list, tuple, dict, set, frozenset, deque)
_ROWS: Final = class_ids(list, tuple)
OFTEN_EMPTY: Final = class_ids(dict, OrderedDict, set, list)  # as the ten tables of hooks of a module
_TABLES: Final = (PARAMETERS, BUFFERS, MODULES)
_ARRAY: Final = np.ndarray.__dict__
_KEEPERS: Final = (queue.Queue, asyncio.Queue, concurrent.futures.Future, UserDict, UserList)
"""Classes of Python's library that are written in Python and hold objects of a program."""
_NUMBERS_AND_TEXT: Final = class_ids(int, float, str, bool, bytes)
_LEAVES: Final = (
    str, bytes, int, float, complex, type(None), ModuleType, CodeType, BuiltinFunctionType, torch.dtype,
    torch.device, torch.Size, torch.UntypedStorage, threading.Thread,
)  # fmt: skip
_OF_OPTIMIZERS: Final = ("param_groups", "state")
"""Attributes of an optimizer whose tensors are known by their role: they need no search."""


def step_of(cls: type, *, deep: bool) -> Callable[[Any], Iterator[Chain]] | None:
    """Return how to go on from the objects of a class, or None where a search ends.

    Args:
        cls: the class.
        deep: True to go from a module into its parameters and submodules, and into objects whose class an installed
            package defines. Objects of memwatch and of the test runner are never searched. A block is a variable of
            the program, and its tables are long.
    """
    step = _step_of(cls)
    if step is _module and not deep:
        return _module_itself
    if step in (_object, _optimizer) and (is_tool_class(cls) or not (deep or _is_program_class(cls))):
        return None
    return step


def is_of_package(cls: type) -> bool:
    """Return True for a class of plain objects that an installed package defines: a near search does not enter them."""
    return _step_of(cls) is _object and not is_tool_class(cls) and not _is_program_class(cls)


def _step_of(cls: type) -> Callable[[Any], Iterator[Chain]] | None:
    if derives(cls, Tensor):
        return tensor_step
    if cls is Capsule:
        return capsule_step
    if any(derives(cls, leaf) for leaf in _LEAVES):
        return None
    for base, step in _STEPS:
        if derives(cls, base):
            return step
    return _node if is_node_type(cls) else _object


def _is_barren(value: Any) -> bool:
    """Return True for a short plain list or tuple of numbers and texts alone: of these a program may have millions."""
    return (
        id(type(value)) in _ROWS
        and len(value) <= _PROBE_ITEMS
        and _NUMBERS_AND_TEXT.issuperset(map(id, map(type, value)))
    )


def tensor_step(_: Any) -> Iterator[Chain]:
    """Yield nothing: a search ends at a tensor."""
    yield from ()


def capsule_step(_: Any) -> Iterator[Chain]:
    """Yield nothing: gc shows no reference of a capsule of C."""
    yield from ()


def _node(value: Any) -> Iterator[Chain]:
    # The attributes of an autograd ctx. The walk along the graph finds the other objects of a node.
    attributes = instance_dict(value)
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held


def _module(value: Any) -> Iterator[Chain]:
    # With its tables, because only they lead to the parameters of a module that was never called.
    attributes = instance_dict(value) or {}
    for held in list(attributes.values()):
        if id(type(held)) not in OFTEN_EMPTY or held:
            yield attributes, held


def _module_itself(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value) or {}
    tables = {id(attributes.get(name)) for name in _TABLES}
    for held in list(attributes.values()):
        if id(held) not in tables and (id(type(held)) not in OFTEN_EMPTY or held):
            yield attributes, held


def _optimizer(value: Any) -> Iterator[Chain]:
    # A program's own optimizer may keep lists of its own beside `state`.
    attributes = instance_dict(value) or {}
    for name, held in list(dict.items(attributes)):
        if name not in _OF_OPTIMIZERS and (id(type(held)) not in OFTEN_EMPTY or held):
            yield attributes, held


def held_by_modules(modules: list[Any]) -> list[Any]:
    """Return the results of `_module_itself` for many modules, in few calls, and empty tables of hooks."""
    attributes = module_dicts(modules)
    tables = set(map(id, chain.from_iterable(map(dict.get, attributes, repeat(name)) for name in _TABLES)))
    held = list(chain.from_iterable(map(dict.values, attributes)))
    return [each for key, each in zip(map(id, held), held, strict=True) if key not in tables]


def _array(value: Any) -> Iterator[Chain]:
    # `tensor.numpy()` refers to the tensor, and an array of objects to each; gc shows nothing of either.
    base = _ARRAY["base"].__get__(value)
    if base is not None:
        yield (base,)
    for held in items_of_array(value, MAX_ITEMS):
        yield (held,)


def _result(value: Any) -> Iterator[Chain]:
    # of a `torch.futures.Future`, as of a collective that runs on its own
    for held in results_of(value):
        yield (held,)


def _mapping(value: Any) -> Iterator[Chain]:
    # gc ignores a dictionary whose values are all unknown to gc, such as numpy arrays
    if gc.is_tracked(value) or any(type(held) is np.ndarray for held in islice(dict.values(value), 1)):
        return chain(_items(value, dict.values), _extra(value))
    return iter(())


def _sequence(value: Any) -> Iterator[Chain]:
    if gc.is_tracked(value) and not _is_barren(value):
        cls = type(value)
        kind = cls if id(cls) in _SEQUENCE_IDS else next(base for base in _SEQUENCES if derives(cls, base))
        return chain(_items(value, kind.__iter__), _extra(value))
    return iter(())


def _context(value: Any) -> Iterator[Chain]:
    for held in list(value.values()):  # asyncio's tasks hold them: as many as the process has variables
        yield (held,)


def _items(container: Any, iterate: Callable[[Any], Any]) -> Iterator[Chain]:
    """Return the items of a container.

    Of a long container that begins with numbers or text, return only the first items.
    """
    items = copied_items(container, iterate, MAX_ITEMS)
    if len(items) > _PROBE_ITEMS and _NUMBERS_AND_TEXT.issuperset(
        map(id, map(type, items[: _PROBE_ITEMS + 1]))
    ):
        del items[_PROBE_ITEMS:]
    return zip(items, strict=True)  # no generator of ours: a list may have thousands of tensors


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
        # changed between the iterator and the end of the copy, which is short: try again
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


def _is_half_made(container: Any) -> bool:
    """Return True for a tuple or list that C code is still filling, as for `f(*(g(x) for x in xs))`.

    gc lists such a container, and to iterate over a place without an object ends the process. gc leaves those out.
    """
    return id(type(container)) in _ROWS and len(gc.get_referents(container)) < len(container)


def _extra(value: Any) -> Iterator[Chain]:
    """Yield the attributes of an instance of a subclass of a container."""
    if id(type(value)) not in _PLAIN:
        attributes = instance_dict(value)
        if attributes:
            for held in list(attributes.values()):
                yield attributes, held


def _function(value: Any) -> Iterator[Chain]:
    function: FunctionType = value
    for cell in function.__closure__ or ():
        for held in gc.get_referents(cell):
            yield function.__closure__, cell, held
    defaults = function.__defaults__  # a program may set it, and the two below, to an object of a subclass
    if defaults is not None:
        for held in tuple.__iter__(defaults):
            yield defaults, held
    for table in (function.__kwdefaults__, function.__dict__):
        if table is not None:
            for held in list(dict.values(table)):
                yield table, held


def exception_step(value: Any) -> Iterator[Chain]:
    """Yield the calls of an exception's traceback, its context, its cause, its arguments and its attributes."""
    fields = BaseException.__dict__
    steps: tuple[Any, ...] = ()
    trace = fields["__traceback__"].__get__(value)
    while trace is not None:
        steps = (*steps, trace)
        yield *steps, trace.tb_frame
        trace = trace.tb_next
    for name in ("__context__", "__cause__", "args"):
        yield (fields[name].__get__(value),)
    yield from _extra(value)


def _frame(value: Any) -> Iterator[Chain]:
    for held in read_locals(value).values():
        yield (held,)


def _is_program_class(cls: type) -> bool:
    """Return True for a class of the program, and for one of Python's that holds what it is given, as those in C do."""
    if any(derives(cls, keeper) for keeper in _KEEPERS):
        return True
    name = type_dict(cls).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    file = (instance_dict(module) or {}).get("__file__")
    return is_program_code(file) if type(file) is str else True


def _class(value: Any) -> Iterator[Chain]:
    if type_dict(value).get("__module__") != "builtins" and _is_program_class(value):
        for held in list(type_dict(value).values()):
            yield (held,)


def _object(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value)
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held
    for held in gc.get_referents(value):
        if held is attributes or type(held) is FrameType or is_a(held, type):
            continue
        if _is_half_made(held):  # an `itertools.product` over nothing keeps its first result so for good
            for item in gc.get_referents(held):
                yield held, item
            continue
        # an empty one may belong to a suspended call: see `read_locals`
        if type(held) is not dict or held:
            yield (held,)


SHOWN_BY_GC: Final = frozenset((_mapping, _sequence, _module, _object))
"""Steps that find only objects that `gc.get_referents` shows too, for many objects at once."""
MODULE_ITSELF: Final = _module_itself
DEFINITIONS: Final = (_function, _class)
"""Steps of functions and classes. Most variables of a module are these, and they hold no tensor."""
_STEPS: Final[tuple[tuple[type, Callable[[Any], Iterator[Chain]]], ...]] = (
    (nn.Module, _module),
    (torch.optim.Optimizer, _optimizer),
    (dict, _mapping),
    *((base, _sequence) for base in _SEQUENCES),
    (FunctionType, _function),
    (BaseException, exception_step),
    (FrameType, _frame),
    (contextvars.Context, _context),
    (np.ndarray, _array),
    (Future, _result),
    (type, _class),
)
