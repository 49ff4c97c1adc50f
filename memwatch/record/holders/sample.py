"""One sample: searches from the running calls, and deeper searches for storages that no variable holds.

The near search from the running calls comes first, because it is cheap. If no variable reaches much of the memory, a
deep search follows, once for each storage. gc then gives the referrers of storages that it did not find either.
"""

from __future__ import annotations

import gc
from collections import deque
from functools import cached_property
from itertools import compress, repeat
from operator import attrgetter, not_
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from memwatch._torch.autograd_state import autograd_state, requires_grad
from memwatch._torch.tensors import is_wrapped, unwrapped
from memwatch.capture.schema import NONE
from memwatch.heap.autograd import gradient_of
from memwatch.heap.c_held import memory_of
from memwatch.heap.classes import class_ids
from memwatch.heap.paths import name_chain
from memwatch.heap.reference_search import GraphWalk, ReferenceSearch
from memwatch.heap.referrer_search import (
    in_variables,
    living_tensors,
    referrer_paths,
    suspended_calls,
    young_objects,
)
from memwatch.heap.roots import (
    RootKind,
    call_roots,
    context_root,
    last_exceptions_root,
    namespace_roots,
    running,
    running_functions,
)
from memwatch.heap.shapes import position_in
from memwatch.heap.tensors import capsule_address, is_tensor
from memwatch.heap.vertices import vertex_of
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.own_code import is_program_code
from memwatch.record.clock import ticks
from memwatch.record.holders.state import Told, function_of
from memwatch.record.tables.parts import address_or_zero, plain_parts, tensor_bytes
from memwatch.record.tables.storages import BASELINE, WatchedStorage, WatchedTensor, address_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from memwatch.heap.referrer_search import Path
    from memwatch.heap.roots import Root
    from memwatch.heap.shapes import Chain
    from memwatch.record.holders.state import SamplingState

_MAX_HOLDERS: Final = 6
"""Holders of one storage that a sample records. A guess."""
_MAX_IN_LIBRARIES: Final = 4
"""Of these, holders in calls of packages, which pass an argument on.

A guess: the program's own variables are further out.
"""
_UNNAMED_RATIO: Final = 0.1
"""A share of the peak increase. Storages without a name are searched for only if they are larger. A guess."""
_LIBRARY_CALLS: Final = 0  # the place of all calls of packages, in the count of roots
_PLAIN: Final = class_ids(Tensor, Parameter)
_nbytes: Final[Callable[[Any], int]] = attrgetter("nbytes")
_PARAMETER, _TENSOR = id(Parameter), id(Tensor)
_CONTAINERS: Final = class_ids(list, tuple, dict, set, deque)
_GRAPH: Final = Edge(EdgeKind.GRAPH)
_DIRECT: Final = 2  # objects in a chain: a root, and the value of its variable
# variables in the table of known paths, which is then emptied. A guess
_MAX_KNOWN: Final = 4096
# objects in a chain, its root included, up to which gradients of gradients are followed: a tensor may be its own
# gradient. A guess
_LONGEST: Final = 32
_SELDOM_ON_STACK: Final = ("list", "deque", "dict", "set")
"""Types of objects that seldom stay on an evaluation stack: an argument of a call is gone by the next sample."""
_C_CODE = (Edge(EdgeKind.C_CODE),)
"""The path to a tensor that only C++ holds."""


class Sample:
    """The results so far of one sample on a device. It holds nothing of the program after it was taken."""

    def __init__(self, state: SamplingState, device: int) -> None:
        self._state = state
        self._live = state.storages.live
        self._device, self._increase_bytes = device, state.increase_bytes(device)
        self._smallest_bytes = state.least_bytes(device)
        self._holder_counts: dict[int, int] = {}
        self._deep = False
        self._learns_ways = not torch.is_grad_enabled()  # see `peek`
        self._view_counts: dict[int, int] = {}
        self._of_views: list[tuple[int, int]] = []
        self._told_now: dict[int, list[Told]] = {}
        self._told_of_views: dict[int, list[Told]] = {}
        self._graphs = GraphWalk()
        self._saved = state.saved.living_by_sequence()
        self._told_of_graph: set[tuple[int, int]] = set()
        self._path_of_items: dict[int, int] = {}
        self._shared_container = (0, 0)
        self._in_containers: dict[int, int] = {}
        self._left_out: dict[int, int] = {}
        self._is_in_library = False
        self._root: Root | None = None
        self._root_number = 0

    def take(self, frame: FrameType | None) -> None:
        """Append the holders of all that is large, as seen from a call and its callers."""
        gradients = self._state.context.gradients
        if self._state.context.in_backward and self._state.costs.is_at_end_of_run:
            gradients.note_between_ops()
        elif self._state.context.in_backward:
            gradients.note_in_op()
        self._state.look_at_roles(frame, self._smallest_bytes)
        spaces: dict[int, dict[str, Any]] = {}
        self._search_near(frame, spaces)
        fresh = self._unnamed(frame)
        state, device = self._state, self._device
        if fresh or state.is_time_to_search_again(device) or state.is_much_unnamed_again(device):
            self._search_further(fresh, frame, spaces)
        if self._is_much(self._in_containers):
            _ask_again_who_refers(state, self._in_containers, frame)
        for number, path in self._of_views:
            state.append(number, path)

    # Each search is a local variable of its method. Its queues refer to the program's objects, so they must be gone
    # before gc is asked for referrers.

    def _search_near(self, frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> None:
        search = self._reference_search(frame)
        known: list[tuple[Any, tuple[Edge, ...]]] = []
        for root in call_roots(frame, spaces):
            for chain in search.tensors(root):
                self._held(chain)
            known += self._state.ways.tensors(root)
        self._held_where_known(known)
        self._state.cut_count += search.cut_count > 0
        self._root = None

    def _held_where_known(self, known: list[tuple[Any, tuple[Edge, ...]]]) -> None:
        """Follow the ways of earlier deep searches, and append each storage that the near search did not find."""
        named = set(self._holder_counts)
        for tensor, edges in known:
            for part, key in _parts(tensor):
                number = self._wanted(part, key)
                if number != NONE and number not in named:
                    self._state.append(number, self._state.paths(edges))

    def _search_further(
        self, fresh: dict[int, WatchedStorage], frame: FrameType | None, spaces: dict[int, dict[str, Any]]
    ) -> None:
        """Search deep. Then ask gc for the referrers of the storages that remain without a holder."""
        capsules = _Capsules(self._search_deep(frame, spaces))
        _look_at_capsules(self._state, capsules)
        if fresh:
            _ask_who_refers(self._state, fresh, capsules, frame)

    def _search_deep(self, frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> list[Chain]:
        """Append the holders that a deep search finds; return the ways to the capsules that it met."""
        self._deep = True
        search = self._reference_search(frame)
        # From all calls at once: if several calls reach an object, the shortest path is recorded.
        for chain in search.tensors(*sorted(call_roots(frame, spaces), key=_is_of_library)):
            self._held(chain)
        for root in call_roots(frame, {}):
            self._state.known_classes.enter_owners(held.value for held in root.entries)
        for root in (*namespace_roots(spaces), context_root(), last_exceptions_root()):
            for chain in search.tensors(root):
                self._held(chain)
        for chain in search.rest():
            self._held(chain)
        for number, told in self._told_of_views.items():
            self._told_now.setdefault(number, []).extend(told)
        self._state.told.update(self._told_now)
        self._root = None
        return search.capsules

    def _reference_search(self, frame: FrameType | None) -> ReferenceSearch:
        calls, state = {id(call) for call in running(frame)}, self._state
        return ReferenceSearch(
            calls, deep=self._deep, barren=state.barren, known_classes=state.known_classes,
            wanted=self._may_be_held,
        )  # fmt: skip

    def _may_be_held(self, links: list[Chain], chain: Chain) -> list[Chain]:
        """Return the references to tensors that `_held` would not ignore. It ignores small tensors without a graph.

        A deep search also ignores storages that have a holder.

        Args:
            links: the references.
            chain: the path from a root to the container of all references, so that its items can be recorded here; or
                empty.
        """
        tensors = [link[-1] for link in links]
        try:
            known = list(map(self._live.get, map(address_of, tensors)))
            has_graph = list(map(requires_grad, tensors))
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            pass_on(error)
            return links
        least_bytes = self._smallest_bytes
        unnamed = self._state.unnamed[self._device] if self._deep else None
        classes = list(map(id, map(type, tensors)))
        if (
            _PLAIN.issuperset(classes) and all(known)
            and (not any(has_graph) or _TENSOR not in classes) and max(map(_nbytes, known)) < least_bytes
        ):  # fmt: skip
            return []  # as in most long lists
        is_told = [
            alive is not None and (cls == _PARAMETER or (cls == _TENSOR and not needs_grad))
            for alive, cls, needs_grad in zip(known, classes, has_graph, strict=True)
        ]
        wanted = [
            not told or alive is None
            or (alive.nbytes >= least_bytes and (unnamed is None or alive.number in unnamed))
            for told, alive in zip(is_told, known, strict=True)
        ]  # fmt: skip
        if not self._deep and chain and _are_containers(chain[1:]):
            here = [one and told for one, told in zip(wanted, is_told, strict=True)]
            self._held_together(chain, compress(zip(tensors, known, strict=True), here))
            wanted = [one and not told for one, told in zip(wanted, is_told, strict=True)]
        return list(compress(links, wanted))

    def _held_together(self, chain: Chain, held: Iterable[tuple[Tensor, Any]]) -> None:
        """Append the holder of many items of one plain container, which share its path.

        Args:
            chain: the path to the container.
            held: the items, large ones without a graph, each with the watch of its storage.
        """
        if chain[0] is not self._root:
            self._enter(chain[0])
        told, device, pairs = self._state.told, self._device, list(held)
        # nearly all are the same simple case: a call for each would take most of the time
        is_simple = [
            alive.__class__ is WatchedStorage and alive.device == device and alive.number not in told
            for _, alive in pairs
        ]
        simple = [alive.number for _, alive in compress(pairs, is_simple)]
        numbers = list(dict.fromkeys(simple))
        of_views = self._views_in(compress(pairs, is_simple)) if len(numbers) < len(simple) else set()
        numbers = self._with_place([number for number in numbers if number not in of_views])
        for tensor, alive in compress(pairs, map(not_, is_simple)):
            if (number := self._counted(alive, tensor)) != NONE:
                numbers.append(number)
        of_views = {number for number in of_views if self._counted_view(number) != NONE}
        if numbers or of_views:
            path = self._path((*chain, pairs[0][0]))
            self._state.append_all(numbers, path)
            self._of_views += [(number, path) for number in of_views]

    def _views_in(self, held: Iterable[tuple[Tensor, Any]]) -> set[int]:
        """Return the storages that the items show only in part."""
        whole: dict[int, bool] = {}
        for tensor, alive in held:
            whole[alive.number] = whole.get(alive.number, False) or not _is_view_of(tensor, alive)
        return {number for number, is_whole in whole.items() if not is_whole}

    def _with_place(self, numbers: list[int]) -> list[int]:
        """Count a holder of many storages, as `_counted` does for one.

        Return the storages that may get another holder.
        """
        counts, left_out = self._holder_counts, self._left_out
        before = list(map(counts.get, numbers, repeat(0)))
        counts.update(zip(numbers, [count + 1 for count in before], strict=True))
        left = list(map(left_out.get, numbers, repeat(0)))
        if not self._is_in_library:
            is_few = [count - out < _MAX_HOLDERS for count, out in zip(before, left, strict=True)]
            return list(compress(numbers, is_few))
        is_over = [count >= _MAX_IN_LIBRARIES for count in before]
        left_out.update(
            zip(compress(numbers, is_over), [out + 1 for out in compress(left, is_over)], strict=True)
        )
        return list(compress(numbers, map(not_, is_over)))

    def _enter(self, root: Root) -> None:
        """Number the root whose chains follow: `id` would name another one, once this one is freed."""
        self._root = root
        self._is_in_library = root.kind is RootKind.FRAME and _is_of_library(root)
        self._root_number += 1
        self._path_of_items.clear()
        self._shared_container = (0, 0)

    def _held(self, chain: Chain) -> None:
        if chain[0] is not self._root:
            self._enter(chain[0])
        path: int | None = None
        tensor = chain[-1]
        for part, key in _parts(tensor):
            number = self._wanted(part, key)
            if number != NONE:
                path = self._path(chain) if path is None else path
                is_view = _is_view_of(part, self._live.get(key))
                if is_view:
                    self._of_views.append((number, path))
                else:
                    self._state.append(number, path)
                if self._deep:
                    self._state.known_classes.enter(chain)
                    self._state.ways.learn(chain)
                    told_now = self._told_of_views if is_view else self._told_now
                    told_now.setdefault(number, []).append(Told(path, function_of(chain[0])))
                elif self._learns_ways and not self._state.context.roles.owns(number):
                    self._state.ways.learn(chain)
        if id(type(tensor)) in _PLAIN:
            if type(tensor) is Parameter or not requires_grad(tensor):
                return  # a parameter's gradient is known by its role, and neither has a graph
            gradient = gradient_of(tensor)
            if gradient is not None and len(chain) < _LONGEST:
                self._held((*chain, gradient))
        if not self._deep:
            self._held_by_graph(chain)

    def _wanted(self, tensor: Tensor, key: int) -> int:
        """Return the number of a tensor's storage, if it is large and has not too many holders yet.

        Args:
            tensor: the tensor.
            key: the address of its storage.
        """
        alive = self._live.get(key) or self._met(tensor, key)
        return NONE if alive is None else self._counted(alive, tensor)

    def _counted(self, alive: WatchedStorage | WatchedTensor, tensor: Tensor) -> int:
        """Count a holder of a storage; return the storage's number, -1 if it is small or has enough of them."""
        if alive.nbytes < self._smallest_bytes or alive.device != self._device:
            return NONE
        if isinstance(alive, WatchedTensor) and alive.address != address_or_zero(tensor):
            return NONE  # a storage of backward that is gone; another lies where it lay
        number = alive.number
        if self._deep:
            if number not in self._state.unnamed[self._device]:
                return NONE
        elif self._state.told and (told := self._state.told.get(number)) and told[0].on_stack:
            self._state.told[number] = []  # it is searched for again, where it leaves the variable
        if _is_view_of(tensor, alive):
            return self._counted_view(number)
        count = self._holder_counts.get(number, 0)
        self._holder_counts[number] = count + 1
        if not self._is_in_library:
            return number if count - self._left_out.get(number, 0) < _MAX_HOLDERS else NONE
        if count < _MAX_IN_LIBRARIES:
            return number
        self._left_out[number] = self._left_out.get(number, 0) + 1
        return NONE

    def _counted_view(self, number: int) -> int:
        """Count a view of a part of a storage, apart from holders of the whole; -1 if there are enough of them."""
        self._holder_counts.setdefault(number, 0)
        count = self._view_counts.get(number, 0)
        self._view_counts[number] = count + 1
        most = _MAX_IN_LIBRARIES if self._is_in_library else _MAX_HOLDERS
        return number if count < most else NONE

    def _met(self, tensor: Tensor, key: int) -> WatchedStorage | WatchedTensor | None:
        """Number a large storage that no op of this thread has touched, as another thread's that waits in a queue."""
        if id(type(tensor)) not in _PLAIN or tensor_bytes(tensor) < self._smallest_bytes:
            return None
        self._state.storages.number_of(tensor, NONE, BASELINE)
        return self._live.get(key)

    def _path(self, chain: Chain) -> int:
        """Return the number of a chain's path. The items of one container share the path of the first.

        Naming costs more than finding, and the report names the container.
        """
        container = id(chain[1]), id(chain[-2])
        if container == self._shared_container:  # nearly always: a list may have thousands of items
            return self._path_of_items[container[0]]
        is_shared = _leads_through_containers(chain)
        if is_shared and len(chain) > _DIRECT:
            self._shared_container = container
        if is_shared and container[0] in self._path_of_items:
            return self._path_of_items[container[0]]
        path = self._path_of_variable(chain) if is_shared else self._state.paths(name_chain(chain))
        if is_shared:
            self._path_of_items[container[0]] = path
        return path

    def _path_of_variable(self, chain: Chain) -> int:
        """Return the number of the path to the value of a root, or to an item of a list in it.

        A call's variable is named once for each line.
        """
        root, value, known = chain[0], chain[1], self._state.path_of_variable
        is_call = root.kind is RootKind.FRAME
        held = next((held for held in root.entries if held.value is value), None) if is_call else None
        item = () if len(chain) == _DIRECT else _item_of(chain)
        if held is None or held.owner is None or type(held.name) is not str or item is None:
            return self._state.paths(name_chain(chain))
        # a comprehension has the owner of the function around it
        key = id(held.owner), held.kind, held.name, item
        if key not in known:
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[key] = held.owner, self._state.paths(name_chain(chain))
        return known[key][1]

    def _held_by_graph(self, chain: Chain) -> None:
        """Append the saved tensors that the graph of a variable keeps, and the objects of a ctx in it."""
        tensor = chain[-1]
        if autograd_state(tensor).is_leaf:
            return
        path: int | None = None
        root: Root = chain[0]
        # Calls of torch pass one graph on: it is walked once for all of them.
        place = _LIBRARY_CALLS if root.explains else self._root_number
        for sequence, held in self._graphs.behind(tensor, place):
            for link in held:
                self._held((*chain, *link))
            for number in self._saved.get(sequence, ()):
                if (number, place) in self._told_of_graph:
                    continue
                self._told_of_graph.add((number, place))
                if path is None:
                    path = self._state.paths((*name_chain(chain), _GRAPH))
                self._state.append(number, path)

    def _unnamed(self, frame: FrameType | None) -> dict[int, WatchedStorage]:
        """Repeat the known paths of storages that no variable holds. Return the storages to search for.

        A storage is searched for if the previous sample had no name for it either, and if all such storages are large
        together.
        """
        state = self._state
        explained = {number for numbers in self._saved.values() for number in numbers}
        missing = {
            alive.key: alive
            for alive in state.to_explain(self._device)
            if alive.nbytes >= self._smallest_bytes
            and alive.number not in self._holder_counts and alive.number not in explained
            and not state.context.roles.owns(alive.number)
        }  # fmt: skip
        before = state.unnamed.get(self._device, set())
        state.unnamed[self._device] = {alive.number for alive in missing.values()}
        untold_bytes = sum(alive.nbytes for alive in missing.values() if alive.number not in state.told)
        is_much = untold_bytes >= _UNNAMED_RATIO * self._increase_bytes
        state.note_unnamed(self._device, untold_bytes if is_much else 0)
        fresh, functions = {}, running_functions(frame) if state.told else set()
        for key, alive in missing.items():
            told = state.told.get(alive.number)
            if told is not None:
                for each in told:
                    if each.function is None or each.function in functions:
                        state.append(alive.number, each.path)
                if told and told[0].in_container:
                    self._in_containers[key] = alive.number
            elif alive.number in before:
                fresh[key] = alive
        return fresh if self._is_much(fresh) else {}

    def _is_much(self, keys: Iterable[int]) -> bool:
        """Return True for storages, by address, that are worth asking gc about now."""
        nbytes = sum(self._live[key].nbytes for key in keys if key in self._live)
        enough = nbytes >= max(_UNNAMED_RATIO * self._increase_bytes, 1)
        return enough and not self._state.context.optimizing


def _is_of_library(root: Root) -> bool:
    """Return True for a call of an installed package, of torch or of Python."""
    call = root.entries[0].owner if root.entries else None
    return call is None or call.file is None or not is_program_code(call.file)


def _leads_through_containers(chain: Chain) -> bool:
    """Return True for a chain of plain containers only: the report names the variable of the first."""
    return len(chain) == _DIRECT or (_are_containers(chain[1:-1]) and is_tensor(chain[-1]))


def _are_containers(links: Chain) -> bool:
    """Return True for lists, dictionaries and the like that have no class of their own."""
    return all(id(type(link)) in _CONTAINERS for link in links)


def _item_of(chain: Chain) -> tuple[type, int, int] | None:
    """Return the type, length and place in the path to an item of a variable's list or tuple, or None."""
    items = chain[1]
    if len(chain) != _DIRECT + 1 or not (type(items) is list or type(items) is tuple):
        return None
    position = position_in(items, type(items), chain[-1])
    return None if position is None else (type(items), len(items), position)


def _is_view_of(tensor: Tensor, alive: WatchedStorage | WatchedTensor | None) -> bool:
    """Return True for a tensor that shows a part of its storage: a slice, whose buffer another name may have."""
    return alive is not None and tensor_bytes(tensor) < alive.nbytes


def _parts(tensor: Tensor) -> Sequence[tuple[Tensor, int]]:
    """Return the parts of a tensor, each with the address of its storage; empty if it shows no parts.

    A wrapper of torch.func has the storage of the tensor inside.
    """
    try:
        if id(type(tensor)) in _PLAIN and tensor.layout is torch.strided:
            key = address_of(tensor)
            return ((tensor, key),) if key else ()
        return [(part, key) for part in plain_parts(tensor) if (key := address_of(part))]
    except (NotImplementedError, RuntimeError, AttributeError) as error:
        pass_on(error)
        return _parts(unwrapped(tensor)) if is_wrapped(tensor) else ()


def _ask_who_refers(
    state: SamplingState, fresh: dict[int, WatchedStorage], capsules: _Capsules, frame: FrameType | None
) -> None:
    """Search for the referrers of storages that the deep search did not find. Search young objects first.

    Args:
        state: the state that samples share; it gets the results.
        fresh: the storages, by address.
        capsules: the capsules that the search met.
        frame: the innermost call.
    """
    left = {key: alive.number for key, alive in fresh.items() if alive.number not in state.told}
    if not left:
        return
    left = dict(sorted(left.items(), key=lambda item: -fresh[item[0]].nbytes))
    state.told.update((number, []) for number in left.values())
    variables = in_variables(running(frame))  # first: a list of all objects holds the frames' dictionaries
    objects = young_objects()
    tensors = living_tensors(left, address_of, objects)
    _tell_paths(state, referrer_paths(tensors, variables, objects, ours=capsules.ids), tensors, capsules)
    old = {key: number for key, number in left.items() if number not in tensors}
    objects.clear()
    tensors.clear()
    if old and state.costs.may_scan_heap():
        start = ticks()
        objects = gc.get_objects()
        tensors = living_tensors(old, address_of, objects)
        objects.clear()  # it holds every container there is, perhaps one of this call's own
        _tell_paths(state, referrer_paths(tensors, variables, ours=capsules.ids), tensors, capsules)
        state.costs.heap_scanned(ticks() - start)


def _ask_again_who_refers(state: SamplingState, again: dict[int, int], frame: FrameType | None) -> None:
    """Search again for the owner of a list that holds an unnamed storage: it may be a suspended call.

    Args:
        state: the state that samples share.
        again: the storages' numbers, by address.
        frame: the innermost call.
    """
    if not state.costs.may_scan_heap():
        return
    start = ticks()
    for number in again.values():
        state.told[number] = [told._replace(in_container=False) for told in state.told[number]]
    variables = in_variables(running(frame))  # first: see `_ask_who_refers`
    objects = young_objects()
    tensors = living_tensors(again, address_of, objects)
    found = referrer_paths(tensors, variables, objects + suspended_calls())
    _tell_paths(state, found, tensors, _Capsules(()), is_last=True)
    state.costs.heap_scanned(ticks() - start)


def _tell_paths(
    state: SamplingState, found: dict[int, Path], tensors: dict[int, list[Any]], capsules: _Capsules,
    *, is_last: bool = False,
) -> None:  # fmt: skip
    for number, edges in found.items():
        on_stack = edges[0].kind is EdgeKind.EVALUATION_STACK
        if edges == _C_CODE:
            state.shared[number] = memory_of(tensors[number][0])
            state.told[number] = capsules.told_of(state.shared[number], state)
        else:
            in_container = on_stack and edges[0].name in _SELDOM_ON_STACK and not is_last
            state.told[number] = [Told(state.paths(edges), None, on_stack, in_container)]
        for told in state.told[number]:
            state.append(number, told.path)


class _Capsules:
    """The DLPack capsules that a deep search met, such as numpy's `from_dlpack` makes.

    A capsule refers to its tensor in C++. The address of its memory shows which tensor it is. Each is read when its
    memory is needed, and named if it owns the memory.

    Args:
        chains: the paths to them. They are the program's objects, so a query to gc must know them as memwatch's.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._chains = chains

    @cached_property
    def _addresses(self) -> list[int | None]:
        return [capsule_address(chain[-1]) for chain in self._chains]

    @property
    def ids(self) -> set[int]:
        """`id` of the objects here that hold the program's objects."""
        return {id(self._chains), *map(id, self._chains)}

    def told_of(self, memory: range, state: SamplingState) -> list[Told]:
        """Return the paths to the capsules that own memory at some addresses; where there are none, that C++ has it.

        Args:
            memory: the addresses.
            state: numbers the paths.
        """
        owners = [
            chain
            for chain, address in zip(self._chains, self._addresses, strict=True)
            if address is not None and address in memory
        ]
        if not owners:
            return [Told(state.paths(_C_CODE), None, True)]
        shared = (Edge(EdgeKind.SHARED_MEMORY, owner=vertex_of(owners[0][-1])),)
        return [
            Told(state.paths((*name_chain(chain), *shared)), function_of(chain[0]), True) for chain in owners
        ]


def _look_at_capsules(state: SamplingState, capsules: _Capsules) -> None:
    """Search again for holders of storages that only C++ held at an earlier sample.

    An array may have been dropped or moved since.
    """
    missing = set().union(*state.unnamed.values())
    for number, memory in list(state.shared.items()):
        told = state.told.get(number)
        if number in missing and told and told[0].on_stack:
            state.told[number] = capsules.told_of(memory, state)
        else:
            del state.shared[number]  # a variable has it again, or it is gone
