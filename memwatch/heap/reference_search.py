"""Two searches with a limit: from roots along references to tensors, and from a tensor along autograd's graph.

They run inside the user's program, so they visit a limited number of objects. They examine each class once and each
object once. The alternative is the snapshot (`heap.snapshot`). It contains the whole process, and takes tenths of a
second.

A step is the function that yields the objects to which an object refers. A class without a step ends the search.
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
"""Takes an object. Yields links: tuples that end in an object that it refers to."""


class KnownClasses:
    """The step of each class that searches met.

    A near search does not enter most objects of installed packages. It enters an object if a deep search found a path
    through its class; `enter` and `enter_owners` add these classes.

    The classes are held weakly and compared by `id`, so no code of their metaclass runs.
    """

    def __init__(self) -> None:
        self._known: dict[bool, dict[int, tuple[weakref.ref[type], _Step | None]]] = {True: {}, False: {}}
        self._entered: set[int] = set()

    def steps(self, *, deep: bool) -> dict[int, _Step | None]:
        """Return the step of each class that is alive, by `id`, in a new dictionary."""
        return {key: step for key, (cls, step) in self._known[deep].items() if cls() is not None}

    def enter(self, chain: Chain) -> None:
        """Let near searches enter objects of the packages' classes on this path.

        Args:
            chain: a path to a tensor whose holder was recorded.
        """
        for cls in map(type, chain[1:-1]):
            self._enter(cls)

    def enter_owners(self, values: Iterable[Any]) -> None:
        """Let near searches enter variables of packages' classes that hold an object of a class that they may enter.

        A deep search visits each object once, from the nearest call. A variable of another call may be its owner. For
        example, the search reached the layer of a cache in a method of the layer, and the caller has the cache.

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
        """Find and remember the step of a class."""
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
        seen: `id` of the objects to skip. The search adds the objects that it visits.
        deep: whether to go from a module into its submodules, and into objects of installed packages.
        barren: `id` of functions and classes in the namespaces of modules. Earlier searches followed them and found no
            tensor. The search adds to them. A near search skips them, and a deep search examines them again.
        known_classes: the classes that earlier searches met, if any.
        wanted: takes the references from one long container to tensors. Returns the references to follow. It also takes
            the path to the container. The path is empty if the search only needs to know whether any reference is
            wanted. To follow each reference takes ten times as long.

    Attributes:
        cut_count: number of calls of `tensors` that visited fewer objects than the roots reach.
        capsules: the paths to the C capsules that were met. A DLPack capsule owns the memory of a tensor.
    """

    def __init__(
        self, seen: set[int], *, deep: bool, barren: set[int], known_classes: KnownClasses | None = None,
        wanted: Callable[[list[Chain], Chain], list[Chain]] | None = None,
    ) -> None:  # fmt: skip
        self._seen = seen
        self._wanted = wanted
        self._passed_in: set[int] = set()  # values of roots with tensors that `wanted` got
        self._is_cut = False
        self._deep = deep
        self._known_classes = KnownClasses() if known_classes is None else known_classes
        self._barren = barren
        self.cut_count = 0
        self.capsules: list[Chain] = []
        self._steps = self._known_classes.steps(deep=deep)
        self._later: deque[Chain] = deque()  # items of long containers
        self._by_exception: dict[int, list[Chain]] = {}  # by the exception's id: the tensors that it holds
        self._rest: deque[Chain] = deque()  # where deep searches stopped at their limit

    def tensors(self, *roots: Root) -> Iterator[Chain]:
        """Yield a chain from a root to each tensor that the roots reach, short chains first.

        A tensor is yielded once for each object that refers to it. All other objects are visited once, on the shortest
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
        """Return the `id` of the functions and classes that a search from this root skips."""
        return self._barren if root.kind is RootKind.NAMESPACE and not self._deep else ()

    def _end(self, roots: Iterable[Root], waiting: deque[Chain], found: set[int]) -> None:
        """Finish a search of some roots.

        If it stopped at its limit, count that; a deep search also keeps the chains that are left, for `rest`. Otherwise
        remember the functions and classes of modules that led to no tensor.
        """
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
        """Continue the deep searches that stopped at their limit. This method has a limit of its own."""
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
        """Yield the tensors of an exception again if a variable of another root led to it.

        All variables of the exception are reported, because the program must delete each of them to free the tensors.
        """
        for known in self._by_exception.setdefault(id(chain[-1]), []):
            yield chain[0], *known[1:]

    def _go_on(self, chain: Chain, step: Callable[[Any], Iterator[Chain]], waiting: deque[Chain]) -> None:
        """Add the objects that the last object of a chain refers to to the waiting chains, unless it was visited."""
        value = chain[-1]
        if id(value) in self._seen:
            passed_on = id(type(value)) in _PASSED_ON or step is exception_step
            if len(chain) > _DIRECT or not passed_on:
                return  # else a root holds a container, such as an argument that two calls have: search it again
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
                    self._is_cut = True  # the one root of a near search has used up its limit
                    del found[_MAX_OBJECTS:]
                found = self._without_idle(chain, found)
            waiting.extend((*chain, *link) for link in found)

    def _without_idle(self, chain: Chain, links: list[Chain]) -> list[Chain]:
        """Return the references of a long container that may lead to a wanted tensor.

        A program may keep tens of thousands of objects that lead to no tensor. To examine a single object takes 20 to
        60 function calls. Here one call to gc returns the references of a whole group of objects.
        """
        kept: list[Chain] = []
        for start in range(0, len(links), _AT_ONCE):
            piece = links[start : start + _AT_ONCE]
            if self._may_lead_on([link[-1] for link in piece], chain):
                kept += piece
        return kept

    def _may_lead_on(self, objects: list[Any], chain: Chain) -> bool:
        """Return True if a search from some objects may find a wanted tensor, or a reference that gc does not show.

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
                except RuntimeError as error:  # another thread is adding an attribute to one of the modules
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
            known = met | classes  # gc shows the class of each object too
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
        """Return the references to objects that the search enters, and the references to tensors."""
        steps, step_for = self._steps, self._step
        found: list[Chain] = []
        tensors: list[Chain] = []
        if len(links) > _WIDE_ITEMS:  # the items of a long container have few classes
            held = [link[-1] for link in links]
            distinct = set(self._steps_of(list(map(id, map(type, held))), held).values())
            if distinct == {tensor_step}:
                return found, links
            if tensor_step not in distinct and None not in distinct:
                return links, tensors
        for link in links:
            cls = id(type(link[-1]))
            step = steps[cls] if cls in steps else step_for(link[-1])
            if step is not None:
                (tensors if step is tensor_step else found).append(link)
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
    """How to read the nodes of one class.

    Attributes:
        is_python: whether its nodes are contexts (`ctx`) of a custom `autograd.Function`.
        sequence: the method that returns a node's sequence number, if the class has it.
        next_functions: the descriptor of a node's `next_functions`, if the class has it.
    """

    is_python: bool
    sequence: Any
    next_functions: Any


class GraphWalk:
    """The walks along autograd's graph that one sample makes. They visit a node once for each root.

    Args:
        max_nodes: largest number of nodes that all the walks visit together.
    """

    def __init__(self, max_nodes: int = _MAX_NODES) -> None:
        self._compiled = compiled_walk(max_nodes)
        self._left = max_nodes
        self._met: set[tuple[int, int]] = set()
        self._type: Final = ByClass(_node_type)
        self._kept: list[Any] = []  # a node's Python object must live as long as its id is used

    def behind(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, list[Chain]]]:
        """Yield the sequence number of each node of a tensor's graph, with the tensors in attributes of its `ctx`.

        Each tensor comes as a chain: the `ctx`, its dictionary, the tensor. Only nodes of a custom `autograd.Function`
        have a `ctx`.

        Args:
            tensor: the result whose graph is visited.
            root: number of the root that leads to the tensor.
        """
        nodes = self._nodes(tensor, root) if self._compiled is None else self._compiled(tensor, root)
        for sequence, ctx in nodes:
            attributes = None if ctx is None else instance_dict(ctx)
            values = [] if attributes is None else list(attributes.values())
            yield sequence, [(ctx, attributes, value) for value in values if is_tensor(value)]

    def _nodes(self, tensor: torch.Tensor, root: int) -> Iterator[tuple[int, Any]]:
        """Yield the same as `NodesBehind`. Here torch makes a Python object for each node, and keeps it."""
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
