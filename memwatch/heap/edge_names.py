"""The words for one Python reference; recognises the objects CPython puts between a name and its value."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import weakref
from collections import deque
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

import torch

from memwatch.heap.frames import read_locals
from memwatch.heap.names import (
    attributes,
    class_place,
    describe,
    function_name,
    in_interactive_shell,
    instance_dict,
    key_text,
    place,
    type_name,
)
from memwatch.heap.roots import Root
from memwatch.heap.tensors import is_python_node, mro_of, type_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Place = tuple["str | None", "int | None"]
Named = tuple[str, int, Place]
NOWHERE: Final[Place] = (None, None)

_SHELL_NAMES: Final = {"_": "last result", "__": "last but one result", "___": "third last result"}


def name_edge(chain: Sequence[Any], at: int) -> Named:
    """Name the reference from ``chain[at]`` onwards.

    Args:
        chain: objects, each referring to the next.
        at: place of the one that refers.

    Returns:
        The words (empty if the reference needs none), how many references they cover, and the file and line.
    """
    parent = chain[at]
    cls = type(parent)
    namer = _NAMERS.get(cls)
    if namer is None:
        bases = mro_of(cls)
        namer = next((_NAMERS[base] for base in bases if base in _NAMERS), _instance)
        if type in bases:
            namer = _class
    return namer(chain, at) or _instance(chain, at) or (f"reference from {describe(parent)}", 1, NOWHERE)


def _after(chain: Sequence[Any], at: int, steps: int) -> Any:
    return chain[at + steps] if at + steps < len(chain) else None


def _key_of(mapping: object, value: object) -> tuple[bool, Any]:
    if dict not in mro_of(type(mapping)):  # the tables of scripted modules are in C++
        return False, None
    table: dict[Any, Any] = mapping  # type: ignore[assignment]
    for key, held in list(dict.items(table)):
        if held is value:
            return True, key
    return False, None


def _root(chain: Sequence[Any], at: int) -> Named | None:
    root: Root = chain[at]
    child = chain[at + 1]
    label = next((words for words, value in root.entries if value is child), "reference")
    if root.kind == "modules":
        return "", 1, NOWHERE
    if root.kind == "frame":
        if label == "globals":
            return _globals(chain, at + 1, 1, f"of {place(root.file, None)}")
        return f"{label} of {root.name} ({place(root.file, root.line)})", 1, (root.file, root.line)
    return label, 1, NOWHERE


def _globals(chain: Sequence[Any], at: int, before: int, owner: str) -> Named | None:
    """Name a value of a module's namespace, the dictionary being ``chain[at]``."""
    namespace, value = chain[at], _after(chain, at, 1)
    found, name = _key_of(namespace, value)
    if not found:
        return None
    if name in ("last_value", "last_exc", "last_traceback") and owner.endswith(" sys"):
        return f"sys.{name} (the last uncaught exception, kept for the debugger)", before + 1, NOWHERE
    if name in ("Out", "_oh") and in_interactive_shell():
        return f"IPython's output history `{name}`", before + 1, NOWHERE
    if name in _SHELL_NAMES and (in_interactive_shell() or owner.endswith(" builtins")):
        return f"the interactive shell's {_SHELL_NAMES[name]} `{name}`", before + 1, NOWHERE
    file = namespace.get("__file__") if type(namespace) is dict else None
    return f"global `{name}` {owner}", before + 1, (file if type(file) is str else None, None)


def _module(chain: Sequence[Any], at: int) -> Named | None:
    if type(chain[at + 1]) is dict:
        return _globals(chain, at + 1, 1, f"of {describe(chain[at])}")
    return None


def _function(chain: Sequence[Any], at: int) -> Named | None:
    function: FunctionType = chain[at]
    child, owner = chain[at + 1], function_name(function)
    code = function.__code__
    where: Place = (code.co_filename, code.co_firstlineno)
    if child is function.__closure__ and child is not None:
        cell = _after(chain, at, 2)
        names = [name for name, held in zip(code.co_freevars, child, strict=False) if held is cell]
        consumed = 3 if _after(chain, at, 3) is not None else 2
        return f"closure cell `{names[0] if names else '?'}` of {owner}", consumed, where
    if child is function.__globals__:
        return _globals(chain, at + 1, 1, f"of {function.__module__}, read by {owner}")
    if child is function.__defaults__:
        return _default(chain, at, owner, where)
    if child is function.__kwdefaults__:
        _, name = _key_of(child or {}, _after(chain, at, 2))
        return f"default argument `{name}` of {owner}", 2, where
    if child is function.__dict__:
        _, name = _key_of(child, _after(chain, at, 2))
        return f"attribute .{name} of function {owner}", 2, where
    return f"reference from function {owner}", 1, where


def _default(chain: Sequence[Any], at: int, owner: str, where: Place) -> Named:
    function: FunctionType = chain[at]
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(defaults) :]
    value = _after(chain, at, 2)
    name = next((name for name, held in zip(names, defaults, strict=False) if held is value), "?")
    return f"default argument `{name}` of {owner}", 2, where


def _class(chain: Sequence[Any], at: int) -> Named | None:
    cls, child = chain[at], chain[at + 1]
    if type(child) is dict:
        found, name = _key_of(child, _after(chain, at, 2))
        if found:
            if cls is weakref.finalize and name == "_registry":
                return "registry of weakref.finalize callbacks", 2, NOWHERE
            if name in ("__dict__", "__weakref__"):  # every class has them, and each refers to its class
                return f"{name} descriptor of class {type_name(cls)}", 2, class_place(cls)
            word = "attribute" if name in type_dict(cls) else "entry"
            return f"class {word} .{name} of class {type_name(cls)}", 2, class_place(cls)
    if type(child) is tuple:
        return f"__mro__ or bases of class {type_name(cls)}", min(2, len(chain) - 1 - at), class_place(cls)
    return f"reference from class {type_name(cls)}", 1, class_place(cls)


def _cell(chain: Sequence[Any], at: int) -> Named:
    return "contents of a closure cell", 1, NOWHERE


def _method(chain: Sequence[Any], at: int) -> Named:
    method: MethodType = chain[at]
    word = "`self`" if chain[at + 1] is method.__self__ else "function"
    return f"{word} of {describe(method)}", 1, NOWHERE


def _partial(chain: Sequence[Any], at: int) -> Named:
    bound: functools.partial[Any] = chain[at]
    child, value = chain[at + 1], _after(chain, at, 2)
    owner = f"functools.partial of {describe(bound.func)}"
    if child is bound.args and value is not None:
        return f"argument [{_index(child, value)}] of {owner}", 2, NOWHERE
    if child is bound.keywords and value is not None:
        return f"argument `{_key_of(child, value)[1]}` of {owner}", 2, NOWHERE
    return f"reference from {owner}", 1, NOWHERE


def _frame(chain: Sequence[Any], at: int) -> Named:
    frame: FrameType = chain[at]
    where: Place = (frame.f_code.co_filename, frame.f_lineno)
    owner = f"{frame.f_code.co_name} ({place(*where)})"
    child = chain[at + 1]
    if child is frame.f_back:
        return f"caller of {owner}", 1, where
    for name, value in read_locals(frame).items():
        if value is child:
            return f"local `{name}` of {owner}", 1, where
        if type(child) is CellType and _cell_holds(child, value):
            return f"local `{name}` of {owner}", 2 if _after(chain, at, 2) is not None else 1, where
    return f"a temporary of {owner}", 1, where


def _cell_holds(cell: CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:
        return False


def _suspended(chain: Sequence[Any], at: int) -> Named:
    generator, child = chain[at], chain[at + 1]
    frame = getattr(
        generator, {GeneratorType: "gi_frame", CoroutineType: "cr_frame"}.get(type(generator), "ag_frame")
    )
    if frame is None:
        return f"reference from {describe(generator)}", 1, NOWHERE
    where: Place = (frame.f_code.co_filename, frame.f_lineno)
    if child is frame:
        return "", 1, NOWHERE
    name = next((name for name, value in read_locals(frame).items() if value is child), None)
    words = f"local `{name}`" if name else "a temporary"
    return f"{words} of suspended {describe(generator)}", 1, where


def _traceback(chain: Sequence[Any], at: int) -> Named:
    words = "call" if type(chain[at + 1]) is FrameType else "next entry"
    return f"{words} of {describe(chain[at])}", 1, NOWHERE


def _exception(chain: Sequence[Any], at: int) -> Named | None:
    error, child = chain[at], chain[at + 1]
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(error) is child:
            return f"{name} of exception {type_name(type(error))}", 1, NOWHERE
    return None


def _mapping(chain: Sequence[Any], at: int) -> Named:
    mapping, child = chain[at], chain[at + 1]
    found, key = _key_of(mapping, child)
    owner = describe(mapping)
    if found:
        return f"value of key {key_text(key)} of {owner}", 1, NOWHERE
    if any(held is child for held in dict.keys(mapping)):
        return f"a key of {owner}", 1, NOWHERE
    return _instance(chain, at) or (f"reference from {owner}", 1, NOWHERE)


def _index(items: Any, value: object) -> int | str:
    return next((place_ for place_, held in enumerate(items) if held is value), "?")


def _sequence(chain: Sequence[Any], at: int) -> Named | None:
    items, child = chain[at], chain[at + 1]
    bases = mro_of(type(items))
    plain = next(kind for kind in (list, tuple, deque) if kind in bases)
    spot = _index(plain.__iter__(items), child)
    if spot == "?":
        return None
    fields = type_dict(type(items)).get("_fields")
    if type(fields) is tuple and isinstance(spot, int) and spot < len(fields):
        return f"field .{fields[spot]} of {type_name(type(items))}", 1, NOWHERE
    return f"item [{spot}] of {describe(items)}", 1, NOWHERE


def _set(chain: Sequence[Any], at: int) -> Named:
    return f"member of {describe(chain[at])}", 1, NOWHERE


def _lru_cache(chain: Sequence[Any], at: int) -> Named | None:
    wrapper, child = chain[at], chain[at + 1]
    function = wrapper.__dict__.get("__wrapped__")
    if child is wrapper.__dict__ or child is function:
        return None
    owner = describe(function) if function is not None else "a function"
    word = (
        "an argument"
        if type(child) in (tuple, functools._make_key((), {"a": 1}, typed=False).__class__)
        else "a result"
    )
    return f"{word} kept by lru_cache of {owner}", 1, NOWHERE


def _context(chain: Sequence[Any], at: int) -> Named | None:
    # a context keeps its values in a tree of C nodes: name the variable and pass over the tree
    for steps, value in enumerate(chain[at + 1 :], start=1):
        for variable, held in chain[at].items():
            if held is value:
                return f"ContextVar {variable.name!r} of a Context", steps, NOWHERE
    return None


def _future(chain: Sequence[Any], at: int) -> Named | None:
    future, child = chain[at], chain[at + 1]
    if asyncio.Task in mro_of(type(future)) and asyncio.Task.get_coro(future) is child:
        return f"coroutine of {describe(future)}", 1, NOWHERE
    for name in ("_result", "_exception", "_callbacks", "_loop", "_context"):
        descriptor = type_dict(asyncio.Future).get(name)
        if type(descriptor) is GetSetDescriptorType and descriptor.__get__(future) is child:
            return f"attribute .{name} of {describe(future)}", 1, NOWHERE
    return _instance(chain, at)


def _thread_local(chain: Sequence[Any], at: int) -> Named | None:
    # local -> its dictionaries by thread -> the dictionary of one thread -> value
    values, value = _after(chain, at, 2), _after(chain, at, 3)
    if type(values) is not dict:
        return None
    found, name = _key_of(values, value)
    return (f"thread local attribute .{name}", 3, NOWHERE) if found else None


def _instance(chain: Sequence[Any], at: int) -> Named | None:
    parent, child = chain[at], chain[at + 1]
    cls = type(parent)
    if child is cls:
        return f"class of {type_name(cls)} object", 1, NOWHERE
    owner, where = type_name(cls), class_place(cls)
    if is_python_node(parent):
        owner = f"{owner} (ctx)"
    values = instance_dict(parent)
    if child is values and values is not None:
        value = _after(chain, at, 2)
        found, name = _key_of(values, value)
        return (
            _attribute(chain, at, name, owner, where, consumed=2)
            if found
            else (f"__dict__ of {owner}", 1, where)
        )
    for name, value in attributes(parent):
        if value is child:
            return _attribute(chain, at, name, owner, where, consumed=1)
    return None


def _attribute(chain: Sequence[Any], at: int, name: str, owner: str, where: Place, *, consumed: int) -> Named:
    table, value = _after(chain, at, consumed), _after(chain, at, consumed + 1)
    word = _MODULE_TABLES.get(name)
    if word is not None and torch.nn.Module in mro_of(type(chain[at])) and value is not None:
        found, key = _key_of(table, value)
        if found:
            return f"{word} {key_text(key)} of {owner}", consumed + 1, where
    return f"attribute .{name} of {owner}", consumed, where


_MODULE_TABLES: Final = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "submodule"}
_NAMERS: Final[dict[type, Callable[[Sequence[Any], int], Named | None]]] = {
    Root: _root,
    ModuleType: _module,
    FunctionType: _function,
    CellType: _cell,
    MethodType: _method,
    functools.partial: _partial,
    FrameType: _frame,
    GeneratorType: _suspended,
    CoroutineType: _suspended,
    AsyncGeneratorType: _suspended,
    TracebackType: _traceback,
    BaseException: _exception,
    functools._lru_cache_wrapper: _lru_cache,
    dict: _mapping,
    list: _sequence,
    tuple: _sequence,
    deque: _sequence,
    threading.local: _thread_local,
    contextvars.Context: _context,
    asyncio.Future: _future,
    set: _set,
    frozenset: _set,
}
