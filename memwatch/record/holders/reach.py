"""What running calls reach: variables, and from them containers, attributes, closures, hooks, generators.

Nothing here runs code of the program: types are told by their real bases, attributes are read from the
dictionaries and slots they lie in, and what C types hold is asked from gc.
"""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
from collections import deque
from itertools import islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from memwatch.heap.frames import read_locals
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import is_node_type, mro_of, type_dict
from memwatch.own_code import is_program_code
from memwatch.record.holders.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Chain = tuple[Any, ...]
"""A source, one of its values, and what each refers to next."""

_MAX_DEPTH: Final = 16
_DIRECT: Final = 2
_MAX_ITEMS: Final = 4096
_PROBE_ITEMS: Final = 64
_MAX_OBJECTS: Final = 1000
_MAX_REST: Final = 4000
_WIDE_ITEMS: Final = 100
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_TABLES: Final = ("_parameters", "_buffers", "_modules")
_LEAVES: Final = (
    str, bytes, int, float, complex, type(None), ModuleType, CodeType, BuiltinFunctionType, torch.dtype,
    torch.device, torch.Size, torch.UntypedStorage, threading.Thread, torch.optim.Optimizer,
)  # fmt: skip  # an optimizer's state is known by role


class Reach:
    """One look's search; knows each type, and each object met, once.

    Args:
        seen: `id` of objects that are not looked into.
        deep: whether to go from a module into those in it, and into objects of installed packages.
        barren: `id` of functions and classes of modules in which earlier looks found no tensor; a deep search
            looks into them again.
    """

    def __init__(self, seen: set[int], *, deep: bool, barren: set[int]) -> None:
        self._seen = seen
        self._deep = deep
        self._barren = barren
        self.cut_count = 0
        """Sources that reach more than was looked at."""
        self._kinds: dict[int, Callable[[Any], Iterator[Chain]] | None] = {}
        self._later: deque[Chain] = deque()
        self._through: dict[int, list[Chain]] = {}
        self._rest: deque[Chain] = deque()

    def tensors(self, source: Source) -> Iterator[Chain]:
        """Give a chain to each tensor that a source reaches, nearest first.

        A tensor may be given for several sources: each of them holds it.
        """
        skipped = self._barren if source.kind == "globals" and not self._deep else ()
        found: set[int] = set()
        waiting: deque[Chain] = deque(
            (source, value)
            for _, _, value in source.values
            if self._step(value) is not None and id(value) not in skipped
        )
        self._later.clear()
        for _ in range(_MAX_OBJECTS):
            if not waiting:
                waiting, self._later = self._later, waiting  # what is in long containers hides nothing else
            if not waiting:
                break
            chain = waiting.popleft()
            value = chain[-1]
            children = self._step(value)
            while children is _tensor:
                found.add(id(chain[1]))
                yield chain
                if id(chain[1]) in self._through:
                    self._through[id(chain[1])].append(chain)
                if not waiting:
                    break
                chain = waiting.popleft()
                value = chain[-1]
                children = self._step(value)
            if children is not None and children is not _tensor:
                yield from self._known_through(source, chain, children)
                self._go_on(chain, children, waiting)
        is_cut = bool(waiting or self._later)
        self.cut_count += is_cut
        if is_cut and self._deep:
            self._rest += (*waiting, *self._later)
        if not is_cut and source.kind == "globals":
            self._barren.update(
                id(value)
                for _, _, value in source.values
                if self._step(value) in (_function, _class) and id(value) not in found
            )

    def rest(self) -> Iterator[Chain]:
        """Go on, within a limit of its own, where a deep search of all sources was cut."""
        for _ in range(_MAX_REST):
            if not self._rest:
                return
            chain = self._rest.popleft()
            children = self._step(chain[-1])
            if children is _tensor:
                yield chain
            elif children is not None:
                self._go_on(chain, children, self._rest)

    def _known_through(self, source: Source, chain: Chain, children: Any) -> Iterator[Chain]:
        """Give what an exception was found to hold before: every variable that holds it must let go of it."""
        if len(chain) == _DIRECT and children is _exception:
            for known in self._through.setdefault(id(chain[-1]), []):
                yield source, *known[1:]

    def _go_on(self, chain: Chain, children: Callable[[Any], Iterator[Chain]], waiting: deque[Chain]) -> None:
        """Queue what the last object of a chain refers to, unless that was done before."""
        value = chain[-1]
        passed_on = len(chain) == _DIRECT and (
            type(value) in (list, tuple, dict, set) or children is _exception
        )
        if id(value) in self._seen and not passed_on:
            return  # a container passed on as an argument is held by both calls
        self._seen.add(id(value))
        if len(chain) < _MAX_DEPTH:
            kinds, step = self._kinds, self._step
            found: list[Chain] = []
            for steps in children(value):
                kind = id(type(steps[-1]))
                how = kinds[kind] if kind in kinds else step(steps[-1])
                if how is not None:
                    (waiting if how is _tensor else found).append((*chain, *steps))
            (waiting if len(found) <= _WIDE_ITEMS else self._later).extend(found)

    def _step(self, value: Any) -> Callable[[Any], Iterator[Chain]] | None:
        cls = type(value)
        try:
            return self._kinds[id(cls)]
        except KeyError:
            step = _step_of(cls)
            if step is _module and not self._deep:
                step = _module_itself
            if step is _object and not self._deep and not _is_own_class(cls):
                step = None
            self._kinds[id(cls)] = step
            return step


def _step_of(cls: type) -> Callable[[Any], Iterator[Chain]] | None:
    bases = mro_of(cls)
    if Tensor in bases:
        return _tensor
    if any(leaf in bases for leaf in _LEAVES):
        return None
    for base, step in _STEPS:
        if base in bases:
            return step
    return _node if is_node_type(cls) else _object


def _tensor(value: Any) -> Iterator[Chain]:
    yield from ()


def _node(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value)  # an autograd ctx; what else nodes hold is found by walking the graph
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held


def _module(value: Any) -> Iterator[Chain]:
    """Look into a module with all that it has: one that was never called has parameters that nobody knows of."""
    attributes = instance_dict(value) or {}
    for held in list(attributes.values()):
        if not (type(held) in (dict, set, list) and not held):
            yield attributes, held


def _module_itself(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value) or {}
    tables = [attributes.get(name) for name in _TABLES]
    for steps in _module(value):
        if not any(steps[-1] is table for table in tables):
            yield steps


def _mapping(value: Any) -> Iterator[Chain]:
    if gc.is_tracked(value):
        yield from _items(dict.values(value))
        yield from _extra(value)


def _sequence(value: Any) -> Iterator[Chain]:
    if gc.is_tracked(value):
        kind = next(base for base in _SEQUENCES if base in mro_of(type(value)))
        yield from _items(kind.__iter__(value))
        yield from _extra(value)


def _context(value: Any) -> Iterator[Chain]:
    for held in list(value.values()):  # asyncio's tasks hold them: as many as the process has variables
        yield (held,)


def _items(values: Any) -> Iterator[Chain]:
    """Give items; of a long container of numbers or text only some are looked at."""
    plain = 0
    for held in list(islice(values, _MAX_ITEMS)):  # at once, for other threads may change it
        plain = plain + 1 if type(held) in (int, float, str, bool, bytes) else -_MAX_ITEMS
        if plain > _PROBE_ITEMS:
            return
        yield (held,)


def _extra(value: Any) -> Iterator[Chain]:
    if type(value) not in _PLAIN:
        attributes = instance_dict(value)
        if attributes:
            for held in list(attributes.values()):
                yield attributes, held


def _function(value: Any) -> Iterator[Chain]:
    function: FunctionType = value
    for cell in function.__closure__ or ():
        for held in gc.get_referents(cell):
            yield function.__closure__, cell, held
    for held in function.__defaults__ or ():
        yield function.__defaults__, held
    for table in (function.__kwdefaults__, function.__dict__):
        for held in list((table or {}).values()):
            yield table, held


def _exception(value: Any) -> Iterator[Chain]:
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


def _is_own_class(cls: type) -> bool:
    """Tell whether a class is of the program, or one of Python's that hold what they are given."""
    name = type_dict(cls).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    file = (instance_dict(module) or {}).get("__file__")
    return is_program_code(file) if type(file) is str else True


def _class(value: Any) -> Iterator[Chain]:
    if type_dict(value).get("__module__") != "builtins" and _is_own_class(value):
        for held in list(type_dict(value).values()):
            yield (held,)


def _object(value: Any) -> Iterator[Chain]:
    attributes = instance_dict(value)
    if attributes:
        for held in list(attributes.values()):
            yield attributes, held
    for held in gc.get_referents(value):
        if held is not attributes and type(held) is not FrameType and type not in mro_of(type(held)):
            yield (held,)


_PLAIN: Final = (list, tuple, dict, set, frozenset, deque)
_STEPS: Final[tuple[tuple[type, Callable[[Any], Iterator[Chain]]], ...]] = (
    (nn.Module, _module),
    (dict, _mapping),
    *((base, _sequence) for base in _SEQUENCES),
    (FunctionType, _function),
    (BaseException, _exception),
    (FrameType, _frame),
    (contextvars.Context, _context),
    (type, _class),
)
