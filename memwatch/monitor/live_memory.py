"""Find the live tensors, numpy arrays, large buffers and large containers at one instant, and their holders.

No op was recorded, so all facts come from the heap. torch's own records show parameters, buffers, gradients and
optimizer state. A search from the program's variables finds the holders of the other tensors.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import mmap
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch._torch.tensors import TENSOR_DICT, device_of
from memwatch.errors import linked_errors
from memwatch.heap.autograd import gradient_of
from memwatch.heap.classes import is_a
from memwatch.heap.frames import is_own_code
from memwatch.heap.inner_tensors import inner_tensors
from memwatch.heap.module_tables import module_dict, optimizer_parts, table_entries
from memwatch.heap.paths import name_chain, steps_of
from memwatch.heap.roots import RootKind, ended_calls, is_tool_class
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import (
    is_composed,
    is_node,
    is_tensor,
    quiet,
    storage_bytes,
    storage_of,
)
from memwatch.kinds.edges import EdgeKind
from memwatch.monitor.layouts import memory_of_mmap
from memwatch.monitor.objects import class_name, grown_containers, large_buffers
from memwatch.own_code import is_program_code
from memwatch.signal_handlers import pass_on, suppress
from memwatch.words.edges import edge_phrase
from memwatch.words.places import short_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memwatch.heap.roots import Root
    from memwatch.heap.search import Tree

PARAMETER: Final = "parameter"
BUFFER: Final = "buffer"
GRADIENT: Final = "gradient"
STATE: Final = "optimizer state"
SAVED: Final = "saved for backward"
OTHER: Final = "other tensors"
ARRAY: Final = "numpy arrays"
OBJECT: Final = "large Python objects"
CATEGORIES: Final = (PARAMETER, BUFFER, GRADIENT, STATE, SAVED, OTHER, ARRAY, OBJECT)

NOBODY: Final = "no reference that gc sees"
MOST_OBJECTS: Final = 2_000_000
"""A search of more objects takes longer than about 4 s and more than 0.6 GiB."""
_MOST_CONTAINERS: Final = 3  # containers that are shown, those with the most bytes; a guess
_LEAST_ARRAY_BYTES: Final = 64 << 10  # smaller arrays and buffers get no row; a guess
_MOST_BUFFERS: Final = 10_000
"""Texts, bytes and other buffers whose holders are searched, the largest ones. A guess."""
_NAMED_STEPS: Final = 3
"""The most references in the name of a holder. Positions in containers are not part of the name, because they differ
from object to object. A guess."""


@dataclass
class Group:
    """The live tensors, arrays or buffers of one category that one holder keeps on one device.

    Attributes:
        device: their device.
        category: one of `CATEGORIES`.
        holder: their holder, in words.
        nbytes: their bytes.
        float32_bytes: the part of these bytes in storages of float32 tensors.
        largest_bytes: the bytes of the largest storage.
        is_kept: whether an attribute or a container keeps them, so that they outlive the call that made them.
        count: number of storages, arrays or buffers.
    """

    device: str
    category: str
    holder: str
    nbytes: int = 0
    float32_bytes: int = 0
    largest_bytes: int = 0
    is_kept: bool = False
    count: int = 0

    def add(self, nbytes: int, *, is_float32: bool) -> None:
        """Count a storage."""
        self.nbytes += nbytes
        self.float32_bytes += nbytes if is_float32 else 0
        self.largest_bytes = max(self.largest_bytes, nbytes)
        self.count += 1


@dataclass(frozen=True)
class Container:
    """A large container of Python, with the bytes of its entries as far as a sample of them shows."""

    kind: str
    holder: str
    entries: int
    nbytes: int


@dataclass
class LiveMemory:
    """The groups and the containers, largest first. `why_unknown` is a sentence if they were not searched."""

    groups: list[Group] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    why_unknown: str = ""


def live_memory(error: BaseException | None = None) -> LiveMemory:
    """Search the heap for live tensors, arrays and containers, and for their holders.

    Args:
        error: the error that ended the program's calls. Its traceback keeps the variables of these calls.
    """
    large = grown_containers({}, _MOST_CONTAINERS, listed_only=True)
    errors = [] if error is None else list(linked_errors(error))
    ended = _without_receivers(ended_calls(errors))
    number = len(gc.get_objects())
    buffers: _Buffers = []
    if number <= MOST_OBJECTS:
        with suppress(MemoryError):
            buffers = large_buffers(_LEAST_ARRAY_BYTES, _MOST_BUFFERS)
    why = f"{number:,} objects are too many to search for the holders of tensors"
    try:
        for deep in (True, False) if number <= MOST_OBJECTS else ():
            with suppress(MemoryError):
                return _searched(large, buffers, ended, errors, deep=deep)
            why = "there was too little memory to search for the holders of tensors"
        return LiveMemory([], _containers_by_referrers(large), why)
    finally:
        large.clear()
        buffers.clear()
        errors.clear()
        for root in ended:
            root.entries.clear()


_Large = list[tuple[Any, int, int]]
"""Containers, each with the number of its entries and about their bytes."""
_Buffers = list[tuple[int, Any]]
"""Texts, bytes and other buffers, each after its bytes."""


def _without_receivers(roots: list[Root]) -> list[Root]:
    """Move `self` and `cls` of each call to a root of their own, because these names do not identify a holder."""
    receivers = []
    for root in roots:
        own = [held for held in root.entries if held.name in _RECEIVERS]
        root.entries = [held for held in root.entries if held.name not in _RECEIVERS]
        receivers.append(dataclasses.replace(root, entries=own))
    return [root for root in [*roots, *receivers] if root.entries]


_RECEIVERS: Final = ("self", "cls")


def _searched(
    large: _Large, buffers: _Buffers, ended: list[Root], errors: list[BaseException], *, deep: bool
) -> LiveMemory:
    targets = itertools.chain((container for container, _, _ in large), (buffer for _, buffer in buffers))
    # use copies, because the snapshot empties its roots at its end, and a second search needs them
    ended = [dataclasses.replace(root, entries=list(root.entries)) for root in ended]
    with Snapshot(targets, deep=deep, more_roots=ended) as snapshot, quiet():
        return _Search(snapshot, errors).result(large, buffers)


def _containers_by_referrers(large: _Large) -> list[Container]:
    """Name the holders of containers by following one reference at a time. This takes more time and less memory."""
    found = []
    for container, entries, nbytes in large:
        chain: list[Any] = [container]
        ours = {id(large), id(chain)}
        for _ in range(_MOST_REFERRERS):
            referrers = [
                each
                for each in gc.get_referrers(chain[0])
                if id(each) not in ours
                and type(each) is not tuple  # the rows of `large`
                and not (type(each) is FrameType and is_own_code(each.f_code))
                and not is_tool_class(type(each))
            ]
            if not referrers:
                break
            ours.add(id(referrers))
            # a module or a call ends the chain
            chain.insert(0, next((each for each in referrers if id(type(each)) in _ENDS), referrers[0]))
            referrers.clear()
            if id(type(chain[0])) in _ENDS:
                break
        named = [edge_phrase(edge) for edge in name_chain(chain) if not edge.kind.row.is_entry]
        holder = short_places(", ".join(dict.fromkeys(named[:_NAMED_STEPS]))) or NOBODY
        chain.clear()
        found.append(Container(class_name(type(container)), holder, entries, nbytes))
    return found


_ENDS: Final = (id(ModuleType), id(FrameType))
_MOST_REFERRERS: Final = 6
"""References that are followed up from a large container, if there is no memory for a search of the heap. A guess."""


class _Search:
    """Groups the storages, arrays and buffers of a snapshot by category and holder."""

    def __init__(self, snapshot: Snapshot, errors: list[BaseException]) -> None:
        self._snapshot = snapshot
        # do not search through tracebacks, because the calls that the errors ended are roots, which name holders better
        passed = [error for error in errors if error.__traceback__ is not None]
        closed = snapshot.positions([*map(id, passed), *(id(error.__traceback__) for error in passed)])
        self._tree: Tree = search(snapshot, self._sources(), closed={*snapshot.barriers(), *closed})
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._anchors: dict[int, tuple[int, bool]] = {}
        self._holders: dict[tuple[int, bool], str] = {}
        self._is_kept: dict[str, bool] = {}

    def result(self, large: _Large, buffers: _Buffers) -> LiveMemory:
        """Return the groups and the containers."""
        records, float32 = self._records()
        for storage in self._snapshot.storages():
            nbytes, device = storage_bytes(storage), str(device_of(storage))
            if not nbytes or device == "meta":
                continue
            position = self._snapshot.position(storage)
            anchor, is_saved = self._anchor(position)
            category, owner = records.get(id(storage), (SAVED if is_saved else OTHER, None))
            if owner is not None and self._tree.reaches(owner):
                holder = self._holder(owner, is_owned=True)
            else:
                holder = self._holder(anchor, is_owned=False)
            group = self._group(device, category, holder)
            group.is_kept = self._is_kept.get(holder, False)
            group.add(nbytes, is_float32=id(storage) in float32)
        self._add_arrays()
        self._add_buffers(buffers)
        containers = []
        for container, entries, nbytes in large:
            holder = self._holder(self._snapshot.position(container), is_owned=False)
            containers.append(Container(class_name(type(container)), holder, entries, nbytes))
        groups = sorted(self._groups.values(), key=lambda group: -group.nbytes)
        return LiveMemory(groups, containers)

    def _sources(self) -> list[list[int]]:
        """Return the positions of the roots. The program's own calls and variables name holders best."""
        first, *rest = self._snapshot.root_groups(runner=True)
        ranked: tuple[list[int], list[int], list[int]] = ([], [], [])
        for position in first:
            ranked[self._rank(self._snapshot.objects[position])].append(position)
        return [*ranked, *rest]

    def _rank(self, root: Root) -> int:
        """Return 0 for modules and variables of the program's calls, 1 for `self` there, 2 for calls of libraries."""
        if root.kind is not RootKind.FRAME or not root.entries:
            return 0
        owner = root.entries[0].owner
        if owner is not None and owner.file is not None and not is_program_code(owner.file):
            return 2
        return 1 if all(held.name in _RECEIVERS for held in root.entries) else 0

    def _group(self, device: str, category: str, holder: str) -> Group:
        key = device, category, holder
        return self._groups.setdefault(key, Group(*key))

    def _records(self) -> tuple[dict[int, tuple[str, int | None]], set[int]]:
        """Read torch's own records.

        Returns:
            For each storage in them, by `id`, its category and the position of the module or optimizer that owns it.
            And the ids of the storages of float32 tensors.
        """
        records: dict[int, tuple[str, int | None]] = {}
        float32: set[int] = set()

        def note(tensors: Iterable[Any], category: str, owner: int | None) -> None:
            for tensor in tensors:
                for storage in _storages(tensor):
                    records.setdefault(id(storage), (category, owner))
                if (
                    category == PARAMETER
                    and is_tensor(tensor)
                    and (gradient := _gradient(tensor)) is not None
                ):
                    note([gradient], GRADIENT, owner)

        modules = self._snapshot.instances(nn.Module)
        parents = {
            id(child): module
            for module in modules
            for _, child in table_entries(module_dict(module), MODULES)
        }
        for module in modules:
            owner = self._snapshot.position(_outermost(module, parents))
            for table, category in ((PARAMETERS, PARAMETER), (BUFFERS, BUFFER)):
                note((value for _, value in table_entries(module_dict(module), table)), category, owner)
        for optimizer in self._snapshot.instances(Optimizer):
            owner = self._snapshot.position(optimizer)
            groups, state = optimizer_parts(optimizer)
            for entry in list(dict.values(state or {})):
                note(dict.values(entry) if is_a(entry, dict) else (), STATE, owner)
            for group in groups or ():
                stepped = dict.get(group, "params")  # a subclass may override the method
                note(stepped if type(stepped) is list else (), PARAMETER, owner)
        for tensor in self._objects(torch.Tensor):
            if is_a(tensor, nn.Parameter):
                note([tensor], PARAMETER, None)
            elif (gradient := _gradient(tensor)) is not None:
                note([gradient], GRADIENT, None)
            for part in _parts(tensor):
                if str(_DTYPE(part)) == "torch.float32" and (storage := storage_of(part)) is not None:
                    float32.add(id(storage))
        return records, float32

    def _objects(self, base: type) -> list[Any]:
        """Return the objects of a class, also if gc does not list them."""
        unlisted = self._snapshot.objects[self._snapshot.first_gc_end : self._snapshot.first_root]
        return [*self._snapshot.instances(base), *(obj for obj in unlisted if is_a(obj, base))]

    def _anchor(self, position: int) -> tuple[int, bool]:
        """Return the first tensor or node on the path to a storage, and whether autograd's graph follows it.

        The program refers to this object, and torch to everything behind it.
        """
        above, objects, anchors = self._tree.above.item, self._snapshot.objects, self._anchors
        path = [position]
        while path[-1] not in anchors and (owner := above(path[-1])) != path[-1]:
            path.append(owner)
        known = anchors.get(path[-1])
        while path:
            each = path.pop()
            if known is None and is_tensor(objects[each]):
                known = each, False
            elif is_node(objects[each]):
                known = (each if known is None else known[0]), True
            if known is not None:
                anchors[each] = known
        return known or (position, False)

    def _holder(self, position: int, *, is_owned: bool) -> str:
        """Return who holds an object, in words. A module or an optimizer is named by its variable alone."""
        if not self._tree.reaches(position):
            return NOBODY
        key = position, is_owned
        if key not in self._holders:
            steps = steps_of(self._snapshot, self._tree.path(position))
            named = [step.words for step in steps if not step.hidden and _is_named(step.edge.kind)]
            wanted = named[: 1 if is_owned else _NAMED_STEPS]
            words = ", ".join(dict.fromkeys(wanted)) or "a container without a name"
            self._holders[key] = short_places(words)
            visible_kinds = [step.edge.kind for step in steps if not step.hidden]
            # a list in a variable of a running call does not count, because the forward may be filling it
            later = [
                kind
                for kind in visible_kinds[1:]
                if not (kind.row.is_entry and visible_kinds[0].row.is_call_variable)
            ]
            self._is_kept[self._holders[key]] = bool(later)
        return self._holders[key]

    def _add_arrays(self) -> None:
        """Group the numpy arrays that have memory of their own."""
        for array in self._objects(np.ndarray):
            nbytes, position = _ARRAY_BYTES(array), self._snapshot.position(array)
            is_owner = _ARRAY_BASE(array) is None and nbytes >= _LEAST_ARRAY_BYTES
            if is_owner and self._tree.reaches(position):  # this search's own arrays are not reached
                group = self._group("cpu", ARRAY, self._holder(position, is_owned=False))
                group.add(nbytes, is_float32=str(_ARRAY_DTYPE(array)) == "float32")

    def _add_buffers(self, buffers: _Buffers) -> None:
        """Group the texts, bytes and other buffers. A mapping of a file takes no memory that the program could free."""
        for nbytes, buffer in buffers:
            position = self._snapshot.position(buffer)
            if self._tree.reaches(position) and not _is_file(buffer):
                group = self._group("cpu", OBJECT, self._holder(position, is_owned=False))
                group.add(nbytes, is_float32=False)


def _is_file(buffer: Any) -> bool:
    """Return whether a buffer is the mapping of a file."""
    if not is_a(buffer, mmap.mmap):
        return False
    begin = f"{memory_of_mmap(buffer).start:x}-"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        line = next((line for line in file if line.startswith(begin)), "")
    # Linux shows the shared memory of `mmap.mmap(-1, size)` as this deleted file
    fields = line.split(maxsplit=5)
    return len(fields) == _FIELDS_WITH_PATH and not fields[5].startswith("/dev/zero")


_FIELDS_WITH_PATH: Final = 6
"""Fields of a line of /proc/PID/maps that has a path; a mapping without a file has one less."""


def _is_named(kind: EdgeKind) -> bool:
    """Return whether a reference is part of a holder's name.

    The words for the base of an array have the array's shape, and that differs from array to array.
    """
    return not kind.row.is_entry and kind is not EdgeKind.NUMPY_BASE


def _outermost(module: nn.Module, parents: dict[int, nn.Module]) -> nn.Module:
    """Return the module that contains a module and is in no other one."""
    seen: set[int] = set()
    while id(module) in parents and id(module) not in seen:
        seen.add(id(module))
        module = parents[id(module)]
    return module


_DTYPE: Final = TENSOR_DICT["dtype"].__get__
_ARRAY_BYTES, _ARRAY_BASE, _ARRAY_DTYPE = (
    np.ndarray.__dict__[name].__get__ for name in ("nbytes", "base", "dtype")
)


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that have the storages of a tensor: itself, or the inner tensors of a wrapper."""
    if not is_composed(type(tensor)):
        yield tensor
        return
    for part in inner_tensors(tensor):
        yield from _parts(part)


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of a tensor; none for another object."""
    for part in _parts(value) if is_tensor(value) else ():
        if (storage := storage_of(part)) is not None:
            yield storage


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return gradient_of(tensor)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        pass_on(error)
        return None
