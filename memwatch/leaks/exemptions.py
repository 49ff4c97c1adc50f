"""The references that a check does not count: those of its block itself, and holders that never leak.

A block may keep the values of its own names, objects that its caller passed in or receives, and the exception in
flight. Bounded caches, running imports and torch's own constants never leak.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, partial
from pathlib import Path
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.heap.class_checks import class_ids, derives, is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.roots import Root, RootKind
from memwatch.heap.tensors import type_dict
from memwatch.leaks.known_retainers import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.heap.snapshot import Snapshot
    from memwatch.leaks.known_retainers import Positions

_TORCH: Final = str(Path(torch.__file__).parent)
_UNASKED_BOUND: Final = 128
"""The size `functools.lru_cache` has if nobody chose one: a cache like that fills for long, and no one knows."""
_WRAPPERS: Final = class_ids(CellType, partial, _lru_cache_wrapper)
_FLAGS: Final = type_dict(type)["__flags__"].__get__
_BASIC: Final = frozenset({"builtins", "collections", "weakref", "_weakref", "types", "functools"})


@dataclass(slots=True)
class Exemptions:
    """The references that one check does not count.

    Attributes:
        objects: ``id`` of objects the caller of the block holds: arguments, result, the exception in flight.
        locals: ``(id of a frame, name)`` of the names the block itself bound.
        globals: ``(id of a namespace, name)`` of module-level names the block itself bound.
        state: True to exempt parameters, buffers, gradients and optimizer state too.
        shared_state: True to exempt them also where something else holds them, such as the graph of a loss.
    """

    objects: set[int] = field(default_factory=set)
    locals: set[tuple[int, str]] = field(default_factory=set)
    globals: set[tuple[int, str]] = field(default_factory=set)
    state: bool = True
    shared_state: bool = False


def exempt_edges(snapshot: Snapshot, exempt: Exemptions) -> Positions:
    """Return the references from names that the block itself bound, and from the exception in flight."""
    return listed(_exempt(snapshot, exempt))


def _exempt(snapshot: Snapshot, exempt: Exemptions) -> Iterable[tuple[int, int]]:
    for place, root in enumerate(snapshot.roots, start=snapshot.first_root):
        if root.kind is RootKind.EXCEPTION:
            handled = (held.value for held in root.entries if id(held.value) in exempt.objects)
            yield from ((place, snapshot.position(error)) for error in handled)
        names = {name for frame, name in exempt.locals if frame == root.frame_id}
        if root.kind is RootKind.FRAME and names:
            for held in root.entries:
                if held.edge.name in names and not _has_other_name(root, held.value, names):
                    yield place, snapshot.position(held.value)
    # up to Python 3.10 a coroutine shows gc its call, and so the names in it, while it runs too
    for frame_id, name in exempt.locals:
        for place in snapshot.positions([frame_id]):
            frame = snapshot.objects[place]
            if type(frame) is FrameType:
                yield place, snapshot.position(read_locals(frame).get(name))
    for namespace, name in exempt.globals:
        for place in snapshot.positions([namespace]):
            yield place, snapshot.position(_value_in(snapshot.objects[place], name))


def _value_in(namespace: Any, name: str) -> Any:
    return dict.get(namespace, name) if is_a(namespace, dict) else None


def _has_other_name(root: Root, value: object, names: set[str]) -> bool:
    return any(held.value is value and held.edge.name not in names for held in root.entries)


def is_bounded(obj: Any) -> bool:
    """Return True if a container drops its oldest entry once it holds as many as its author allowed."""
    cls = type(obj)
    if cls is _lru_cache_wrapper:
        most = obj.cache_parameters()["maxsize"]
        return most is not None and (most != _UNASKED_BOUND or obj.cache_info().currsize >= most)
    return derives(cls, deque) and deque.__dict__["maxlen"].__get__(obj) is not None


def is_import(obj: object) -> bool:
    """Return True if an object is a call of the import system.

    A module that keeps a frame while it is being imported keeps the frames of its importers too, once. torch does so
    when the first optimizer step or checkpoint of a process loads torch._dynamo.
    """
    return type(obj) is FrameType and obj.f_code.co_filename.startswith("<frozen importlib")


def is_torchs_own(objects: Sequence[Any]) -> bool:
    """Return True if a retention path runs from a module of torch through nothing but torch's own objects.

    Such are constants and caches that torch makes on first use. A hook or a closure of the program's on the way
    makes it the program's path.
    """
    if len(objects) < 2 or type(objects[0]) is not Root or objects[0].kind is not RootKind.MODULES:
        return False
    return type(objects[1]) is ModuleType and all(map(_by_torch, objects[1:]))


def _by_torch(obj: Any) -> bool:
    cls = type(obj)
    if cls is FunctionType:
        return bool(obj.__code__.co_filename.startswith(_TORCH))
    if cls is MethodType:
        return _by_torch(obj.__func__)
    if cls is ModuleType:
        return _is_torch(obj.__dict__.get("__name__"))
    if derives(cls, type):
        return _is_torch(type_dict(obj).get("__module__"))
    home = type_dict(cls).get("__module__") if _FLAGS(cls) & _HEAP_TYPE else cls.__module__
    return id(cls) in _WRAPPERS or _is_torch(home) or (type(home) is str and home in _BASIC)


# Py_TPFLAGS_HEAPTYPE: classes written in Python carry their module in their namespace
_HEAP_TYPE: Final = 1 << 9


def _is_torch(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] == "torch"
