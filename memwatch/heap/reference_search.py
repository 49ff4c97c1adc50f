"""The bounded searches: along references from roots to tensors, and along autograd graphs from a tensor to its nodes.

They run inside the user's program, so they visit a limited number of objects. They examine each type and each object
once. The snapshot (`heap.snapshot`) is the other strategy: it sees the whole process, and takes tenths of a second.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch._torch.autograd import SEQUENCE_NR, AccumulateGrad, FunctionBase
from memwatch._torch.autograd_state import autograd_state, compiled_walk
from memwatch.heap.classes import ByClass, class_ids, derives
from memwatch.heap.names import instance_dict
from memwatch.heap.roots import RootKind
from memwatch.heap.shapes import (
    DEFINITIONS,
    MODULE_ITSELF,
    OFTEN_EMPTY,
    SHOWN_BY_GC,
    capsule_step,
    exception_step,
    held_by_modules,
    is_of_package,
    step_of,
    tensor_step,
)
from memwatch.heap.tensors import is_tensor, type_dict
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import torch

    from memwatch.heap.roots import Root
    from memwatch.heap.shapes import Chain


_MAX_DEPTH: Final = 16
"""Objects in a chain, from its root to a tensor. A guess."""
_DIRECT: Final = 2  # objects in a chain of a root and its value
_MAX_OBJECTS: Final = 1000
"""Objects that one search visits for each of its roots. A guess."""
_MAX_REST: Final = 4000
"""Objects that `rest` visits after a deep search was cut. A guess."""
_WIDE_ITEMS: Final = 100
"""A container with more items is long. Its items wait until all other objects were visited. A guess."""
_AT_ONCE: Final = 64
"""Items of a long container that one call to gc examines.

A guess: an item that leads to a tensor keeps the others of its group.
"""
_MAX_LEVELS: Final = 6
"""References that are followed from such an item. A guess: the third reference from a module leads to a parameter."""
_MAX_AT_ONCE: Final = 4096
"""Objects that such a group of items may hold, or else the group is kept. Measured: 64 modules hold some 2,000."""
_PASSED_ON: Final = class_ids(list, tuple, dict, set)
_Step = Callable[[Any], Iterator["Chain"]]
"""Yields the objects that an object refers to. In place of a step, None ends the search."""


class KnownClasses:
    """The way searches go on from objects, by class. Each class is examined once.

    Classes are held weakly and compared by `id`, so no code of their metaclass runs.
    """

    def __init__(self) -> None:
        self._known: dict[bool, dict[int, tuple[weakref.ref[type], _Step | None]]] = {True: {}, False: {}}
        self._entered: set[int] = set()

    def steps(self, *, deep: bool) -> dict[int, _Step | None]:
        """Return the steps of the classes that are alive, by `id`, as a dictionary of the caller's own."""
        return {key: step for key, (cls, step) in self._known[deep].items() if cls() is not None}

    def enter(self, chain: Chain) -> None:
        """Let near searches enter the classes of packages on a path to a tensor that is worth a holder."""
        for cls in map(type, chain[1:-1]):
            self._enter(cls)

    def enter_owners(self, values: Iterable[Any]) -> None:
        """Let near searches enter some objects of packages too, if they hold objects that `enter` allowed.

        A deep search finds each object once, from the nearest call. Other calls may have its owner: a cache has layers,
        and a method of a layer may run.

        Args:
            values: the variables of the running calls.
        """
        for value in values if self._entered else ():
            cls = type(value)
            if id(cls) in self._entered or not is_of_package(cls):
                continue
            for held in list((instance_dict(value) or {}).values()):
                first = next(iter(_first_items(held)), held)
                if id(type(first)) in self._entered:
                    self._enter(cls)
                    break

    def _enter(self, cls: type) -> None:
        known = self._known[False].get(id(cls))
        if (known is None or (known[1] is None and known[0]() is cls)) and is_of_package(cls):
            self._known[False][id(cls)] = weakref.ref(cls), step_of(cls, deep=True)
            self._entered.add(id(cls))

    def step_of(self, cls: type, *, deep: bool) -> _Step | None:
        """Return the step of a class, and know it from now on."""
        step = step_of(cls, deep=deep)
        self._known[deep][id(cls)] = weakref.ref(cls), step
        return step


def _first_items(value: Any) -> Iterator[Any]:
    """Yield the first item of a plain list or tuple, or the first value of a plain dictionary."""
    if type(value) is list or type(value) is tuple:
        yield from value[:1]
    elif type(value) is dict:
        yield from islice(value.values(), 1)


class ReferenceSearch:
    """One search from many roots. It examines each object once, except containers that a root holds directly.

    Args:
        seen: `id` of objects to skip; the search adds the objects that it met.
        deep: whether to go from a module into its submodules, and into objects of installed packages.
        barren: `id` of functions and classes of modules that led earlier searches to no tensor; a deep search
            examines them again.
        known_classes: the classes that earlier searches met, if any.
        wanted: takes some references to tensors and returns the ones to follow. A list may have thousands, and to
            follow each takes ten times as long. It also gets the path to their owner. The path is empty if the search
            only needs to know whether any reference is wanted.
    """

    def __init__(
        self, seen: set[int], *, deep: bool, barren: set[int], known_classes: KnownClasses | None = None,
        wanted: Callable[[list[Chain], Chain], list[Chain]] | None = None,
    ) -> None:  # fmt: skip
        self._seen = seen
        self._wanted = wanted
        self._passed_in: set[int] = set()
        self._is_cut = False
        self._deep = deep
        self._known_classes = KnownClasses() if known_classes is None else known_classes
        self._barren = barren
        self.cut_count = 0
        """Number of roots that reach more objects than the search visited."""
        self.capsules: list[Chain] = []
        """The ways to the capsules of C that were met: one of DLPack owns memory of a tensor."""
        self._steps = self._known_classes.steps(deep=deep)
        self._later: deque[Chain] = deque()
        self._by_exception: dict[int, list[Chain]] = {}
        self._rest: deque[Chain] = deque()

    def tensors(self, *roots: Root) -> Iterator[Chain]:
        """Yield a chain from some roots to each tensor that they reach, nearest first.

        A tensor may be found from several roots: each of them holds it. Each object is searched once, on its shortest
        path from a root.
        """
        found: set[int] = set()
        steps, step_for = self._steps, self._step
        waiting: deque[Chain] = deque(
            (root, held.value)
            for root in roots
            for barren in (self._barren_of(root),)
            for held in root.entries
            for cls in (id(type(held.value)),)
            if id(held.value) not in barren
            and (steps[cls] if cls in steps else step_for(held.value)) is not None
        )
        self._later.clear()
        self._passed_in.clear()
        self._is_cut = False
        for _ in range(_MAX_OBJECTS * len(roots)):
            if not waiting:
                waiting, self._later = self._later, waiting  # a long container must not hide other objects
            if not waiting:
                break
            chain = waiting.popleft()
            step = steps.get(id(type(chain[-1])))
            while step is tensor_step:  # the search ends at a tensor, so a tensor does not count as a step
                found.add(id(chain[1]))
                yield chain
                if self._by_exception and id(chain[1]) in self._by_exception:
                    self._by_exception[id(chain[1])].append(chain)
                if not waiting:
                    break
                chain = waiting.popleft()
                step = steps.get(id(type(chain[-1])))
            if step is not None and step is not tensor_step:
                if step is exception_step and len(chain) == _DIRECT:
                    yield from self._found_before(chain)
                self._go_on(chain, step, waiting)
        self._end(roots, waiting, found)

    def _barren_of(self, root: Root) -> Collection[int]:
        """Return the `id` of the functions and classes of a module that led an earlier search to no tensor."""
        return self._barren if root.kind is RootKind.NAMESPACE and not self._deep else ()

    def _end(self, roots: Iterable[Root], waiting: deque[Chain], found: set[int]) -> None:
        """Note the unsearched rest of some roots, or the definitions of modules that reach no tensor."""
        if waiting or self._later or self._is_cut:
            self.cut_count += 1
            if self._deep:
                self._rest += (*waiting, *self._later)
            return
        found |= self._passed_in
        self._barren.update(
            id(held.value)
            for root in roots
            if root.kind is RootKind.NAMESPACE
            for held in root.entries
            if self._step(held.value) in DEFINITIONS and id(held.value) not in found
        )

    def rest(self) -> Iterator[Chain]:
        """Go on, within a limit of its own, where a deep search of all roots was cut."""
        for _ in range(_MAX_REST):
            if not self._rest:
                return
            chain = self._rest.popleft()
            step = self._step(chain[-1])
            if step is tensor_step:
                yield chain
            elif step is not None:
                self._go_on(chain, step, self._rest)

    def _found_before(self, chain: Chain) -> Iterator[Chain]:
        """Yield the tensors that an exception held from another root: every variable must drop the exception."""
        for known in self._by_exception.setdefault(id(chain[-1]), []):
            yield chain[0], *known[1:]

    def _go_on(self, chain: Chain, step: Callable[[Any], Iterator[Chain]], waiting: deque[Chain]) -> None:
        """Queue the objects that the last object of a chain refers to, unless that was done before."""
        value = chain[-1]
        if id(value) in self._seen:
            passed_on = id(type(value)) in _PASSED_ON or step is exception_step
            if len(chain) > _DIRECT or not passed_on:
                return  # a container passed on as an argument is held by both calls
        self._seen.add(id(value))
        if step is capsule_step:
            self.capsules.append(chain)
        elif len(chain) < _MAX_DEPTH:
            found, tensors = self._apart(list(step(value)))
            if len(tensors) > _WIDE_ITEMS and self._wanted is not None:
                self._passed_in.add(id(chain[1]))
                tensors = self._wanted(tensors, chain)
            waiting.extend((*chain, *link) for link in tensors)
            if len(found) > _WIDE_ITEMS:
                waiting = self._later
                if not self._deep and len(found) > _MAX_OBJECTS:
                    self._is_cut = True  # it has one root, and ignores the rest
                    del found[_MAX_OBJECTS:]
                found = self._without_idle(chain, found)
            waiting.extend((*chain, *link) for link in found)

    def _without_idle(self, chain: Chain, links: list[Chain]) -> list[Chain]:
        """Return the references of a long container that may lead to a wanted tensor.

        A program may keep tens of thousands of objects that lead to no tensor. To examine each by itself takes 20 to
        60 calls. Here one call asks gc for the references of many of them together.
        """
        kept: list[Chain] = []
        for start in range(0, len(links), _AT_ONCE):
            piece = links[start : start + _AT_ONCE]
            if self._may_lead_on([link[-1] for link in piece], chain):
                kept += piece
        return kept

    def _may_lead_on(self, objects: list[Any], chain: Chain) -> bool:
        """Return whether a search from some objects may find a wanted tensor, or an object that is hidden from gc.

        Args:
            objects: items of the container at the end of the chain.
            chain: the path from a root to the container.
        """
        met: set[int] = set()
        for _ in range(_MAX_LEVELS):
            met.update(map(id, objects))
            keys = list(map(id, map(type, objects)))
            classes = set(keys)
            steps = set(self._steps_of(keys, objects).values())
            if not steps <= SHOWN_BY_GC:
                if steps != {MODULE_ITSELF}:
                    return True
                try:
                    held = held_by_modules(objects)
                except RuntimeError as error:  # another thread gives one an attribute, just now
                    pass_on(error)
                    return True
            else:
                held = gc.get_referents(*objects)
            if len(held) > _MAX_AT_ONCE:
                return True
            keys = list(map(id, map(type, held)))
            steps_of = self._steps_of(keys, held)
            if tensor_step in steps_of.values():
                tensors = [
                    (each,) for key, each in zip(keys, held, strict=True) if steps_of[key] is tensor_step
                ]
                if self._wanted is None or self._wanted(tensors, ()):
                    return True
                self._passed_in.add(id(chain[1]))
            open_ = {key for key, step in steps_of.items() if step is not None and step is not tensor_step}
            inner = [
                each
                for key, each in zip(keys, held, strict=True)
                if key in open_ and (key not in OFTEN_EMPTY or each)
            ]
            known = met | classes  # an object refers to its class
            objects = [
                each
                for key, each in zip(map(id, inner), inner, strict=True)
                if key not in known and key not in self._seen
            ]
            if not objects:
                return False
        return True

    def _steps_of(self, keys: list[int], objects: list[Any]) -> dict[int, _Step | None]:
        """Return the step of each class of some objects, by the `id` of the class."""
        return {key: self._step(each) for key, each in dict(zip(keys, objects, strict=True)).items()}

    def _apart(self, links: list[Chain]) -> tuple[list[Chain], list[Chain]]:
        """Separate the references to objects that the search enters from those to tensors."""
        steps, step_for = self._steps, self._step
        found: list[Chain] = []
        tensors: list[Chain] = []
        if len(links) > _WIDE_ITEMS:  # mostly of one class, which is examined once
            held = [link[-1] for link in links]
            hows = set(self._steps_of(list(map(id, map(type, held))), held).values())
            if hows == {tensor_step}:
                return found, links
            if tensor_step not in hows and None not in hows:
                return links, tensors
        for link in links:
            cls = id(type(link[-1]))
            how = steps[cls] if cls in steps else step_for(link[-1])
            if how is not None:
                (tensors if how is tensor_step else found).append(link)
        return found, tensors

    def _step(self, value: Any) -> Callable[[Any], Iterator[Chain]] | None:
        cls = type(value)
        try:
            return self._steps[id(cls)]
        except KeyError as error:
            pass_on(error)
            step = self._steps[id(cls)] = self._known_classes.step_of(cls, deep=self._deep)
            return step


_MAX_NODES: Final = 4000
"""Nodes of autograd that one walk visits at most. A guess."""
_NO_NUMBER: Final = -1
"""The sequence number of a node that has none."""
_REFUSED: Final = (RuntimeError, AttributeError, NotImplementedError, TypeError)


class _NodeType(NamedTuple):
    """How nodes of one class are read.

    Attributes:
        is_python: whether they are contexts of a custom `autograd.Function`.
        sequence: the method that returns a node's sequence number, if it has one.
        next_functions: the descriptor of the nodes behind it.
    """

    is_python: bool
    sequence: Any
    next_functions: Any


class GraphWalk:
    """The walks of one sample; meets every node once for each root, and no more nodes than are affordable."""

    def __init__(self, max_nodes: int = _MAX_NODES) -> None:
        self._compiled = compiled_walk(max_nodes)
        self._left = max_nodes
        self._met: set[tuple[int, int]] = set()
        self._type: Final = ByClass(_node_type)
        self._kept: list[Any] = []  # a node's Python object must live as long as its id is used

    def behind(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, list[Chain]]]:
        """Yield the sequence number of each node behind a tensor, and chains to the tensors on a custom ctx.

        Args:
            tensor: where the graph ends.
            root: number of the root whose variable holds the tensor.
        """
        nodes = self._nodes(tensor, root) if self._compiled is None else self._compiled(tensor, root)
        for sequence, ctx in nodes:
            attributes = None if ctx is None else instance_dict(ctx)
            values = [] if attributes is None else list(attributes.values())
            yield sequence, [(ctx, attributes, value) for value in values if is_tensor(value)]

    def _nodes(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, Any]]:
        """Yield the same as `NodesBehind`; torch keeps the Python objects that this makes of nodes."""
        waiting = [autograd_state(tensor, with_node=True).grad_fn]
        while waiting and self._left > 0:
            node = waiting.pop()
            if node is None or (root, id(node)) in self._met:
                continue
            self._met.add((root, id(node)))
            self._kept.append(node)
            self._left -= 1
            node_type = self._type(type(node))
            sequence = _NO_NUMBER if node_type.sequence is None else node_type.sequence(node)
            yield sequence, node if node_type.is_python else None
            for following, _ in _read(node_type.next_functions, node) or ():
                if following is not None and type(following) is not AccumulateGrad:
                    waiting.append(following)


def _node_type(cls: type) -> _NodeType:
    is_python = derives(cls, FunctionBase)
    namespace = FunctionBase.__dict__ if is_python else type_dict(cls)
    return _NodeType(is_python, namespace.get(SEQUENCE_NR), namespace.get("next_functions"))


def _read(descriptor: Any, obj: Any) -> Any:
    try:
        return None if descriptor is None else descriptor.__get__(obj)
    except _REFUSED as error:
        pass_on(error)
        return None
