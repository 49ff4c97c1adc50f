"""Take one sample: find the objects that refer to the large storages of a device, and append rows of `holders`.

A sample has up to three searches, from cheap to expensive:

- The near search starts at the variables of the running calls. Every sample has one.
- The deep search also starts at global variables and at context variables, and enters submodules and the objects of
  packages. It runs if the near search left many bytes without a holder, and again some samples later.
- gc lists the referrers of the storages that the deep search did not find. Each storage is searched for in this way
  once, or twice if it lies in a container.
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
    """The results so far of one sample on a device. Use it once: it may keep nodes of autograd graphs alive.

    Most tables have the number of a storage as their key:

    - `_holder_counts`: how many holders of the whole storage were found. 0 if only views of a part were found.
    - `_left_out`: how many of these were found in calls of packages and not recorded.
    - `_view_counts`: how many views of a part of the storage were found.
    - `_found_paths`, `_found_view_paths`: the paths that the deep search found to the whole storage, and to views.

    The others:

    - `_view_rows`: pairs of a storage and a path to a view of a part. Their rows come last.
    - `_recorded_saved`: pairs of a saved storage and the root whose graph it was recorded for.
    - `_path_of_items`: the path to the first item found behind each variable, by the `id` of the variable's value.
    - `_shared_container`: the `id` of the variable's value and of the container that the last chain went through.
    - `_in_containers`: by address, the storages that gc found in a container without an owner at an earlier sample.
    """

    def __init__(self, state: SamplingState, device: int) -> None:
        self._state = state
        self._live = state.storages.live
        self._device, self._increase_bytes = device, state.increase_bytes(device)
        self._smallest_bytes = state.least_bytes(device)
        self._holder_counts: dict[int, int] = {}
        self._deep = False
        self._learns_ways = not torch.is_grad_enabled()  # peeks follow ways, and run only without grad
        self._view_counts: dict[int, int] = {}
        self._view_rows: list[tuple[int, int]] = []
        self._found_paths: dict[int, list[Told]] = {}
        self._found_view_paths: dict[int, list[Told]] = {}
        self._graphs = GraphWalk()
        self._saved = state.saved.living_by_sequence()
        self._recorded_saved: set[tuple[int, int]] = set()
        self._path_of_items: dict[int, int] = {}
        self._shared_container = (0, 0)
        self._in_containers: dict[int, int] = {}
        self._left_out: dict[int, int] = {}
        self._is_in_library = False
        self._root: Root | None = None
        self._root_number = 0

    def take(self, frame: FrameType | None) -> None:
        """Search for the holders of the large storages. Start at a call and its callers."""
        gradients = self._state.context.gradients
        if self._state.context.in_backward and self._state.costs.is_at_end_of_run:
            gradients.note_between_ops()
        elif self._state.context.in_backward:
            gradients.note_in_op()
        self._state.look_at_roles(frame, self._smallest_bytes)
        spaces: dict[int, dict[str, Any]] = {}  # filled by `call_roots` with the functions' namespaces
        self._search_near(frame, spaces)
        fresh = self._storages_to_search(frame)
        state, device = self._state, self._device
        if fresh or state.is_time_to_search_again(device) or state.is_much_unnamed_again(device):
            self._search_further(fresh, frame, spaces)
        if self._is_much(self._in_containers):
            _search_referrers_again(state, self._in_containers, frame)
        # After the rows of all other holders: the variable that holds a whole buffer is a better name than a slice.
        for number, path in self._view_rows:
            state.append(number, path)

    # Each search is a local variable of its method, and `_root` is reset at the end of the method. Both refer to the
    # program's objects, so gc would list them as referrers.

    def _search_near(self, frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> None:
        search = self._reference_search(frame)
        known: list[tuple[Any, tuple[Edge, ...]]] = []
        for root in call_roots(frame, spaces):
            for chain in search.tensors(root):
                self._append_holder(chain)
            known += self._state.ways.tensors(root)
        self._append_known_places(known)
        self._state.cut_count += search.cut_count > 0
        self._root = None

    def _append_known_places(self, known: list[tuple[Any, tuple[Edge, ...]]]) -> None:
        """Append the storages in places that earlier searches found, if the near search did not find them.

        Args:
            known: the tensors that lie in these places now, each with the references from the root to it.
        """
        named = set(self._holder_counts)
        for tensor, edges in known:
            for part, key in _parts(tensor):
                number = self._number_to_append(part, key)
                if number != NONE and number not in named:
                    self._state.append(number, self._state.paths(edges))

    def _search_further(
        self, fresh: dict[int, WatchedStorage], frame: FrameType | None, spaces: dict[int, dict[str, Any]]
    ) -> None:
        """Search deep. Then let gc list the referrers of the storages that remain without a holder."""
        capsules = _Capsules(self._search_deep(frame, spaces))
        _search_capsules_again(self._state, capsules)
        if fresh:
            _search_referrers(self._state, fresh, capsules, frame)

    def _search_deep(self, frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> list[Chain]:
        """Append the holders that a deep search finds. Return the chains to the DLPack capsules that it met."""
        self._deep = True
        search = self._reference_search(frame)
        # From all calls at once: if several calls reach an object, the shortest path is recorded.
        for chain in search.tensors(*sorted(call_roots(frame, spaces), key=_is_of_library)):
            self._append_holder(chain)
        for root in call_roots(frame, {}):
            self._state.known_classes.enter_owners(held.value for held in root.entries)
        for root in (*namespace_roots(spaces), context_root(), last_exceptions_root()):
            for chain in search.tensors(root):
                self._append_holder(chain)
        for chain in search.rest():
            self._append_holder(chain)
        for number, told in self._found_view_paths.items():
            self._found_paths.setdefault(number, []).extend(told)
        self._state.told.update(self._found_paths)
        self._root = None
        return search.capsules

    def _reference_search(self, frame: FrameType | None) -> ReferenceSearch:
        calls, state = {id(call) for call in running(frame)}, self._state
        return ReferenceSearch(
            calls, deep=self._deep, barren=state.barren, known_classes=state.known_classes,
            wanted=self._references_to_follow,
        )  # fmt: skip

    def _references_to_follow(self, links: list[Chain], chain: Chain) -> list[Chain]:
        """Return the references to tensors that the search has to follow. Append the simple ones here.

        A `Tensor` or `Parameter` is simple if its storage is known and it has no graph. The search has to follow:

        - all tensors that are not simple;
        - simple tensors that are large. In a deep search, their storages must also lack a holder.

        A near search does not follow the large simple items of a plain container. This method appends their holder for
        all of them together.

        Args:
            links: the references.
            chain: the chain from a root to the container of all the tensors. It is empty if the search only needs to
                know whether there is any reference to follow. Then nothing is appended.
        """
        tensors = [link[-1] for link in links]
        try:
            known = list(map(self._live.get, map(address_of, tensors)))
            need_grad = list(map(requires_grad, tensors))
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            pass_on(error)
            return links
        least_bytes = self._smallest_bytes
        unnamed = self._state.unnamed[self._device] if self._deep else None
        classes = list(map(id, map(type, tensors)))
        if (
            _PLAIN.issuperset(classes) and all(known)
            and (not any(need_grad) or _TENSOR not in classes) and max(map(_nbytes, known)) < least_bytes
        ):  # fmt: skip
            return []  # as in most long lists
        is_simple = [
            alive is not None and (cls == _PARAMETER or (cls == _TENSOR and not needs_grad))
            for alive, cls, needs_grad in zip(known, classes, need_grad, strict=True)
        ]
        wanted = [
            not simple or alive is None
            or (alive.nbytes >= least_bytes and (unnamed is None or alive.number in unnamed))
            for simple, alive in zip(is_simple, known, strict=True)
        ]  # fmt: skip
        if not self._deep and chain and _are_containers(chain[1:]):
            here = [one and simple for one, simple in zip(wanted, is_simple, strict=True)]
            self._append_items(chain, compress(zip(tensors, known, strict=True), here))
            wanted = [one and not simple for one, simple in zip(wanted, is_simple, strict=True)]
        return list(compress(links, wanted))

    def _append_items(self, chain: Chain, held: Iterable[tuple[Tensor, Any]]) -> None:
        """Append a holder for many items of one plain container. All rows have the path of the first item.

        Args:
            chain: the chain to the container.
            held: the large items without a graph, each with the weak reference that watches its storage.
        """
        if chain[0] is not self._root:
            self._enter_root(chain[0])
        told, device, pairs = self._state.told, self._device, list(held)
        # Nearly all items are simple. A call of `_count_holder` for each would take most of the time of the search.
        is_simple = [
            alive.__class__ is WatchedStorage and alive.device == device and alive.number not in told
            for _, alive in pairs
        ]
        simple = [alive.number for _, alive in compress(pairs, is_simple)]
        numbers = list(dict.fromkeys(simple))
        # Views are looked for only if items share a storage. A single slice counts as a holder of the whole.
        in_part = self._seen_in_part(compress(pairs, is_simple)) if len(numbers) < len(simple) else set()
        numbers = self._count_holders([number for number in numbers if number not in in_part])
        for tensor, alive in compress(pairs, map(not_, is_simple)):
            if (number := self._count_holder(alive, tensor)) != NONE:
                numbers.append(number)
        in_part = {number for number in in_part if self._count_view(number) != NONE}
        if numbers or in_part:
            path = self._path((*chain, pairs[0][0]))
            self._state.append_all(numbers, path)
            self._view_rows += [(number, path) for number in in_part]

    def _seen_in_part(self, held: Iterable[tuple[Tensor, Any]]) -> set[int]:
        """Return the storages that no item shows as a whole."""
        whole: dict[int, bool] = {}
        for tensor, alive in held:
            whole[alive.number] = whole.get(alive.number, False) or not _is_view_of(tensor, alive)
        return {number for number, is_whole in whole.items() if not is_whole}

    def _count_holders(self, numbers: list[int]) -> list[int]:
        """Count one holder for each of some storages. Return the storages whose holder is to be recorded.

        This does the same as `_count_holder` for each storage, in fewer calls.
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

    def _enter_root(self, root: Root) -> None:
        """Begin with the chains of another root. It gets a number, because its `id` may be used again."""
        self._root = root
        self._is_in_library = root.kind is RootKind.FRAME and _is_of_library(root)
        self._root_number += 1
        self._path_of_items.clear()
        self._shared_container = (0, 0)

    def _append_holder(self, chain: Chain) -> None:
        """Append rows for the storages of the tensor at the end of a chain, and for tensors that it leads to.

        These are the tensor's gradient and, in a near search, the tensors that its graph saves.
        """
        if chain[0] is not self._root:
            self._enter_root(chain[0])
        path: int | None = None
        tensor = chain[-1]
        for part, key in _parts(tensor):
            number = self._number_to_append(part, key)
            if number != NONE:
                path = self._path(chain) if path is None else path
                is_view = _is_view_of(part, self._live.get(key))
                if is_view:
                    self._view_rows.append((number, path))
                else:
                    self._state.append(number, path)
                if self._deep:
                    self._state.known_classes.enter(chain)
                    self._state.ways.learn(chain)
                    found = self._found_view_paths if is_view else self._found_paths
                    found.setdefault(number, []).append(Told(path, function_of(chain[0])))
                elif self._learns_ways and not self._state.context.roles.owns(number):
                    self._state.ways.learn(chain)
        if id(type(tensor)) in _PLAIN:
            if type(tensor) is Parameter or not requires_grad(tensor):
                return  # neither has a graph, and a parameter's gradient is known by its role
            gradient = gradient_of(tensor)
            if gradient is not None and len(chain) < _LONGEST:
                self._append_holder((*chain, gradient))
        if not self._deep:
            self._append_saved(chain)

    def _number_to_append(self, tensor: Tensor, key: int) -> int:
        """Count a holder of a tensor's storage. Return the storage's number if the holder is to be recorded, else -1.

        Args:
            tensor: the tensor.
            key: the address of its storage.
        """
        alive = self._live.get(key) or self._number_unseen(tensor, key)
        return NONE if alive is None else self._count_holder(alive, tensor)

    def _count_holder(self, alive: WatchedStorage | WatchedTensor, tensor: Tensor) -> int:
        """Count a holder of a storage. Return the storage's number if the holder is to be recorded, else -1.

        It is not recorded if the storage is small, lies on another device, or has enough holders already. A deep search
        also ignores the storages that it was not started for.
        """
        if alive.nbytes < self._smallest_bytes or alive.device != self._device:
            return NONE
        if isinstance(alive, WatchedTensor) and alive.address != address_or_zero(tensor):
            return NONE  # a storage of backward that died: the tensor has a newer one at its address
        number = alive.number
        if self._deep:
            if number not in self._state.unnamed[self._device]:
                return NONE
        elif self._state.told and (told := self._state.told.get(number)) and told[0].on_stack:
            # A variable refers to it now, so the old path is over. If it leaves the variable, search again.
            self._state.told[number] = []
        if _is_view_of(tensor, alive):
            return self._count_view(number)
        count = self._holder_counts.get(number, 0)
        self._holder_counts[number] = count + 1
        if not self._is_in_library:
            return number if count - self._left_out.get(number, 0) < _MAX_HOLDERS else NONE
        if count < _MAX_IN_LIBRARIES:
            return number
        self._left_out[number] = self._left_out.get(number, 0) + 1
        return NONE

    def _count_view(self, number: int) -> int:
        """Count a view of a part of a storage. Return the storage's number if the view is to be recorded, else -1.

        Views have a limit of their own, so that many slices cannot displace the holder of the whole.
        """
        self._holder_counts.setdefault(number, 0)  # the storage has a name: no deeper search is needed
        count = self._view_counts.get(number, 0)
        self._view_counts[number] = count + 1
        most = _MAX_IN_LIBRARIES if self._is_in_library else _MAX_HOLDERS
        return number if count < most else NONE

    def _number_unseen(self, tensor: Tensor, key: int) -> WatchedStorage | WatchedTensor | None:
        """Number a large storage that no op of this thread has used. Another thread may have made it for a queue."""
        if id(type(tensor)) not in _PLAIN or tensor_bytes(tensor) < self._smallest_bytes:
            return None
        self._state.storages.number_of(tensor, NONE, BASELINE)
        return self._live.get(key)

    def _path(self, chain: Chain) -> int:
        """Return the number of a chain's path.

        All tensors behind one variable share the path of the first, if only plain containers lie between. To name a
        path takes longer than to find the tensor, and the report names only the variable.
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
        """Return the number of the path to a variable's value, or to a tensor behind it in plain containers.

        The path to a call's variable, or to an item of its list, is named once for each line that the call is at.
        """
        root, value, known = chain[0], chain[1], self._state.path_of_variable
        is_call = root.kind is RootKind.FRAME
        held = next((held for held in root.entries if held.value is value), None) if is_call else None
        item = () if len(chain) == _DIRECT else _item_of(chain)
        if held is None or held.owner is None or type(held.name) is not str or item is None:
            return self._state.paths(name_chain(chain))
        # The kind is needed: a comprehension has the same owner as the function around it. A local variable of one may
        # have the name of an argument of the other.
        key = id(held.owner), held.kind, held.name, item
        if key not in known:
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[key] = held.owner, self._state.paths(name_chain(chain))
        return known[key][1]

    def _append_saved(self, chain: Chain) -> None:
        """Append the tensors that the graph of a tensor saves, and those in attributes of a custom Function's ctx."""
        tensor = chain[-1]
        if autograd_state(tensor).is_leaf:
            return
        path: int | None = None
        root: Root = chain[0]
        # Calls of torch and Python pass a tensor on to each other. Its graph is walked once for all of them.
        place = _LIBRARY_CALLS if root.explains else self._root_number
        for sequence, held in self._graphs.behind(tensor, place):
            for link in held:
                self._append_holder((*chain, *link))
            for number in self._saved.get(sequence, ()):
                if (number, place) in self._recorded_saved:
                    continue
                self._recorded_saved.add((number, place))
                if path is None:
                    path = self._state.paths((*name_chain(chain), _GRAPH))
                self._state.append(number, path)

    def _storages_to_search(self, frame: FrameType | None) -> dict[int, WatchedStorage]:
        """Append the paths of earlier searches again, for storages that the near search did not find.

        Return the storages to search for now, by address. A storage is searched for if the previous sample did not find
        it either. The result is empty if these storages have few bytes together.
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
        """Return True if storages have enough bytes together for a search. Always False in an optimizer's step.

        Args:
            keys: the addresses of the storages.
        """
        nbytes = sum(self._live[key].nbytes for key in keys if key in self._live)
        enough = nbytes >= max(_UNNAMED_RATIO * self._increase_bytes, 1)
        return enough and not self._state.context.optimizing


def _is_of_library(root: Root) -> bool:
    """Return True for a call of an installed package, of torch or of Python."""
    call = root.entries[0].owner if root.entries else None
    return call is None or call.file is None or not is_program_code(call.file)


def _leads_through_containers(chain: Chain) -> bool:
    """Return True if the tensor is a variable's value, or if only plain containers lie between it and the variable."""
    return len(chain) == _DIRECT or (_are_containers(chain[1:-1]) and is_tensor(chain[-1]))


def _are_containers(links: Chain) -> bool:
    """Return True for lists, dictionaries and the like that have no class of their own."""
    return all(id(type(link)) in _CONTAINERS for link in links)


def _item_of(chain: Chain) -> tuple[type, int, int] | None:
    """Return type and length of a variable's list or tuple, and the position of the chain's tensor in it, or None."""
    items = chain[1]
    if len(chain) != _DIRECT + 1 or not (type(items) is list or type(items) is tuple):
        return None
    position = position_in(items, type(items), chain[-1])
    return None if position is None else (type(items), len(items), position)


def _is_view_of(tensor: Tensor, alive: WatchedStorage | WatchedTensor | None) -> bool:
    """Return True for a tensor that shows only a part of its storage, such as a slice of a buffer."""
    return alive is not None and tensor_bytes(tensor) < alive.nbytes


def _parts(tensor: Tensor) -> Sequence[tuple[Tensor, int]]:
    """Return the parts of a tensor, each with the address of its storage. Empty if torch cannot read the storage.

    A wrapper of torch.func has the storage of the tensor that it wraps.
    """
    try:
        if id(type(tensor)) in _PLAIN and tensor.layout is torch.strided:
            key = address_of(tensor)
            return ((tensor, key),) if key else ()
        return [(part, key) for part in plain_parts(tensor) if (key := address_of(part))]
    except (NotImplementedError, RuntimeError, AttributeError) as error:
        pass_on(error)
        return _parts(unwrapped(tensor)) if is_wrapped(tensor) else ()


def _search_referrers(
    state: SamplingState, fresh: dict[int, WatchedStorage], capsules: _Capsules, frame: FrameType | None
) -> None:
    """Search for referrers of the storages that the deep search did not find. Search gc's young objects first.

    Args:
        state: the state that samples share. It gets the results.
        fresh: the storages that the deep search was started for, by address.
        capsules: the capsules that the deep search met.
        frame: the innermost call.
    """
    left = {key: alive.number for key, alive in fresh.items() if alive.number not in state.told}
    if not left:
        return
    left = dict(sorted(left.items(), key=lambda item: -fresh[item[0]].nbytes))
    state.told.update((number, []) for number in left.values())
    # Read the variables before `objects` exists. `read_locals` empties the dictionary of a frame only if nothing else
    # refers to it, and `objects` would.
    variables = in_variables(running(frame))
    objects = young_objects()
    tensors = living_tensors(left, address_of, objects)
    _append_paths(state, referrer_paths(tensors, variables, objects, ours=capsules.ids), tensors, capsules)
    old = {key: number for key, number in left.items() if number not in tensors}
    objects.clear()
    tensors.clear()
    if old and state.costs.may_scan_heap():
        start = ticks()
        objects = gc.get_objects()
        tensors = living_tensors(old, address_of, objects)
        objects.clear()  # this list refers to all containers, so gc would list it as a referrer
        _append_paths(state, referrer_paths(tensors, variables, ours=capsules.ids), tensors, capsules)
        state.costs.heap_scanned(ticks() - start)


def _search_referrers_again(state: SamplingState, again: dict[int, int], frame: FrameType | None) -> None:
    """Search again for the owner of a container that keeps a storage. It may be a suspended generator or coroutine.

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
    variables = in_variables(running(frame))  # before `objects` exists, see `_search_referrers`
    objects = young_objects()
    tensors = living_tensors(again, address_of, objects)
    found = referrer_paths(tensors, variables, objects + suspended_calls())
    _append_paths(state, found, tensors, _Capsules(()), is_last=True)
    state.costs.heap_scanned(ticks() - start)


def _append_paths(
    state: SamplingState, found: dict[int, Path], tensors: dict[int, list[Any]], capsules: _Capsules,
    *, is_last: bool = False,
) -> None:  # fmt: skip
    """Append the paths that a search through gc found, and keep them for later samples.

    Args:
        state: the state that samples share.
        found: the paths, by the number of the storage.
        tensors: the tensors of each storage, by its number.
        capsules: the capsules that the deep search met.
        is_last: whether no further search for the owner of a container follows.
    """
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
    """The DLPack capsules that a deep search met. numpy's `from_dlpack` makes such capsules, for example.

    A capsule refers to its tensor in C++, where memwatch cannot follow the reference. But the address of the capsule's
    memory shows which storage it keeps. The addresses are read when they are first needed.

    Args:
        chains: the chains from roots to the capsules.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._chains = chains

    @cached_property
    def _addresses(self) -> list[int | None]:
        return [capsule_address(chain[-1]) for chain in self._chains]

    @property
    def ids(self) -> set[int]:
        """The `id` of the list of chains and of each chain. gc lists them as referrers of the program's objects."""
        return {id(self._chains), *map(id, self._chains)}

    def told_of(self, memory: range, state: SamplingState) -> list[Told]:
        """Return the paths to the capsules that keep some memory. If there is none, return the path for C++ alone.

        Args:
            memory: the addresses of the memory.
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


def _search_capsules_again(state: SamplingState, capsules: _Capsules) -> None:
    """Compare the capsules with the storages that only C++ held at an earlier sample.

    The program may have dropped an array, or moved it to another variable, since then.
    """
    missing = set().union(*state.unnamed.values())
    for number, memory in list(state.shared.items()):
        told = state.told.get(number)
        if number in missing and told and told[0].on_stack:
            state.told[number] = capsules.told_of(memory, state)
        else:
            del state.shared[number]  # a variable refers to it again, or it died
