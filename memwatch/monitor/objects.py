"""Find the memory of the tensors and of the Python objects of this process: addresses and bytes."""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import mmap
import os
import sys
import types
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.containers import GROWING, base_of_array, items_of_array, subclasses_of
from memwatch.host_allocators import PAGE_BYTES
from memwatch.monitor.layouts import (
    BUFFERS,
    addresses_of_arrow,
    arrow_classes,
    buffer_of_ctypes,
    buffer_of_text,
    bytes_of_buffer,
    has_ctypes_buffer,
    memory_of_mmap,
)
from memwatch.monitor.mappings import Residency, Use, read_mappings, union_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_MAX_NODES: Final = 1_000_000
"""The most tensors and autograd nodes in one search. A guess: a step of a large model has tens of thousands."""


@dataclass
class TensorMemory:
    """The addresses of this process's host tensors.

    Attributes:
        ranges: rows of begin and end, which do not overlap, by address.
        pinned: the same for tensors in pinned memory, which are not in `ranges`.
        count: number of tensors.
        with_graphs: whether autograd's graphs were followed.
    """

    ranges: NDArray[np.int64] = field(default_factory=lambda: union_of(()))
    pinned: NDArray[np.int64] = field(default_factory=lambda: union_of(()))
    count: int = 0
    with_graphs: bool = True


def tensor_memory(*, with_graphs: bool = True) -> TensorMemory:
    """Find the memory of all host tensors; none if the program has not imported torch.

    Args:
        with_graphs: whether to follow autograd's graphs to tensors that only C++ holds. Another thread must not do
            that while the program's thread runs backward.
    """
    if "torch" not in sys.modules:
        return TensorMemory()
    import torch

    from memwatch.devices import devices_in_use
    from memwatch.heap.tensors import is_on_cpu, is_tensor, quiet

    ranges: list[tuple[int, int]] = []
    pinned: list[tuple[int, int]] = []
    has_pinned = any(device != "cpu" for device in devices_in_use())
    tensors = _all_tensors(with_graphs=with_graphs)
    count = 0
    with quiet():
        while (
            tensors
        ):  # drop each reference at once, so that a tensor that the program frees does not live longer
            tensor = tensors.pop()
            if not is_tensor(tensor):
                continue
            try:
                memory = _memory_on_host(tensor) if is_on_cpu(tensor) else range(0)
                if memory:
                    is_pinned = has_pinned and torch.Tensor.is_pinned(tensor)
                    (pinned if is_pinned else ranges).append((memory.start, memory.stop))
                    count += 1
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                pass_on(error)  # the tensor has no memory of its own
    return TensorMemory(union_of(ranges), union_of(pinned), count, with_graphs)


def _memory_on_host(tensor: Any) -> range:
    from memwatch.heap.c_held import memory_of

    return memory_of(tensor)


def _all_tensors(*, with_graphs: bool) -> list[Any]:
    from memwatch.heap.autograd import autograd_edges, seen_through
    from memwatch.heap.classes import of_classes
    from memwatch.heap.tensors import TypeFilter, is_storage, quiet

    wanted = TypeFilter()
    if gc.get_freeze_count():
        found = [obj for objects in _levels_of_objects() for obj in of_classes(objects, wanted.wants)]
    else:
        found = of_classes(gc.get_objects(), wanted.wants)
    if not with_graphs:
        return found
    seen = set(map(id, found))
    todo = list(found)
    with quiet():
        while todo and len(found) < _MAX_NODES:
            for edge in seen_through(autograd_edges(todo.pop(), hooks=False)):
                target: Any = edge.target
                if id(target) not in seen and wanted(target) and not is_storage(target):
                    seen.add(id(target))
                    found.append(target)
                    todo.append(target)
    return found


def ids_of_tensors() -> frozenset[int]:
    """Return the ids of the tensors that gc lists."""
    return frozenset(map(id, _all_tensors(with_graphs=False))) if "torch" in sys.modules else frozenset()


_PIECE: Final = 20_000  # objects whose referents are listed at a time; a guess
_MOST_SMALL_BYTES: Final = 512
"""Python's own allocator gives larger blocks to malloc."""
_LARGE_BYTES: Final = 16 << 10
"""Objects with larger blocks are remembered one by one. Other objects are remembered by their container, if it has at
least `_LEAST_LENGTH` entries. A smaller container of smaller blocks has less than 1 MiB, which is never reported."""
_RANGE_BYTES: Final = 64 << 10
"""Of larger blocks, only pages in memory count, because a program may make a numpy array and not touch it. A guess."""
_MOST_OF_ARROW: Final = 256
"""Objects of each class of pyarrow whose addresses are read. A guess: its allocator has few mappings, of 1 GiB each."""
_IN_ONE_BLOCK: Final = (str, bytes, int, tuple)
_HAS_GC: Final = 1 << 14  # Py_TPFLAGS_HAVE_GC
_GC_HEADER_BYTES: Final = 16  # before each object that gc tracks: two words
_MALLOC_HEADER_BYTES: Final = 8  # before each block of glibc: its size
# read through `type` itself, because a metaclass may run code of its own
_MRO, _NAMESPACE, _BASIC_BYTES, _FLAGS, _QUALNAME = (
    type.__dict__[name].__get__
    for name in ("__mro__", "__dict__", "__basicsize__", "__flags__", "__qualname__")
)


@dataclass
class PythonMemory:
    """The Python objects that gc shows, and the objects to which they refer.

    Attributes:
        large_bytes: blocks from malloc, without those in `ranges`.
        ranges: large blocks with a known address, and mappings of `mmap.mmap`.
        by_type: number and bytes of the objects of each type, small ones included.
        lengths: number of entries of the larger containers, by their ids.
        large: bytes of the objects with a large block, by their ids. Of a mapping, the bytes in memory count.
        arrow_addresses: addresses of some buffers of pyarrow.
    """

    large_bytes: int = 0
    ranges: NDArray[np.int64] = field(default_factory=lambda: union_of(()))
    by_type: dict[str, tuple[int, int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    large: dict[int, int] = field(default_factory=dict)
    arrow_addresses: frozenset[int] = frozenset()


def python_memory(*, keep_large: Callable[[Any, int], None] | None = None) -> PythonMemory:
    """Add up the Python objects that gc shows, and the objects to which they refer.

    A million objects take about 2 s.

    Args:
        keep_large: called with each object that has a large block, and the bytes of the block.
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    large_bytes = 0
    ranges: list[tuple[int, int]] = []
    lengths: dict[int, int] = {}
    large: dict[int, int] = {}
    mapped: list[tuple[Any, range]] = []
    bases_of_arrow = arrow_classes()
    arrow_addresses: set[int] = set()
    for objects in _levels_of_objects():
        lengths.update((id(container), length) for container, length in _containers(objects))
        types_of = _ids_of(tuple(map(type, objects)))
        distinct, of_class = np.unique(types_of, return_inverse=True)
        classes = [ctypes.cast(key, ctypes.py_object).value for key in distinct.tolist()]
        kinds = [_Kind(cls) for cls in classes]
        has_size = np.array([kind.has_plain_size for kind in kinds])[of_class]
        measured = objects if has_size.all() else list(itertools.compress(objects, has_size.tolist()))
        nbytes = np.zeros(len(objects), dtype=np.int64)
        nbytes[has_size] = np.fromiter(map(sys.getsizeof, measured), dtype=np.int64, count=len(measured))
        number = np.bincount(of_class, minlength=len(classes))
        total = np.bincount(of_class, weights=nbytes, minlength=len(classes))
        for kind, count, size in zip(kinds, number.tolist(), total.tolist(), strict=True):
            counts[kind.name] += count
            sizes[kind.name] += int(size)
        blocks = nbytes - np.array([kind.bytes_of_object for kind in kinds])[of_class]
        arrays = np.flatnonzero(np.array([kind.is_array for kind in kinds])[of_class])
        if len(arrays):
            shapes = _bytes_of_shapes(map(objects.__getitem__, arrays.tolist()), len(arrays))
            large_bytes += _bytes_in_malloc(shapes)
            blocks[arrays] -= shapes
        for at, cls in enumerate(classes):
            base = next((each for each in bases_of_arrow if any(each is one for one in _MRO(cls))), None)
            if base is not None:
                places = np.flatnonzero(of_class == at)
                for place in places[:: len(places) // _MOST_OF_ARROW + 1].tolist():
                    arrow_addresses.update(addresses_of_arrow(objects[place], base))
        is_large = blocks > np.array([kind.most_small_bytes for kind in kinds])[of_class]
        for place in np.flatnonzero(np.array([cls is mmap.mmap for cls in classes])[of_class]).tolist():
            memory = memory_of_mmap(objects[place])
            if memory:
                ranges.append((memory.start, memory.stop))
                mapped.append((objects[place], memory))
        for place in np.flatnonzero(np.array([cls is io.StringIO for cls in classes])[of_class]).tolist():
            buffer, kept_bytes = buffer_of_text(objects[place]), bytes_of_buffer(objects[place], io.StringIO)
            if buffer:
                ranges.append((buffer.start, buffer.stop))
            if kept_bytes >= _LARGE_BYTES:
                large[id(objects[place])] = kept_bytes
                if keep_large is not None:
                    keep_large(objects[place], kept_bytes)
        for place in np.flatnonzero(np.array([kind.has_ctypes_buffer for kind in kinds])[of_class]).tolist():
            buffer = buffer_of_ctypes(objects[place])
            sizes[kinds[of_class[place]].name] += len(buffer)
            if len(buffer) >= _RANGE_BYTES:
                ranges.append((buffer.start, buffer.stop))
            elif len(buffer) > _MOST_SMALL_BYTES:
                large_bytes += len(buffer) + _MALLOC_HEADER_BYTES
            if len(buffer) >= _LARGE_BYTES:
                large[id(objects[place])] = len(buffer)
                if keep_large is not None:
                    keep_large(objects[place], len(buffer))
        for place in np.flatnonzero(is_large & (blocks >= _LARGE_BYTES)).tolist():
            large[id(objects[place])] = int(blocks[place])
            if keep_large is not None:
                keep_large(objects[place], int(blocks[place]))
        has_address = is_large & (blocks >= _RANGE_BYTES)
        has_address &= np.array([kind.shows_address for kind in kinds])[of_class]
        # Without a comprehension: up to Python 3.11 it keeps the arrays above in cells. gc lists these cells, and the
        # search would find memwatch's own arrays.
        for place in np.flatnonzero(has_address).tolist():
            begin = kinds[of_class[place]].address(objects[place])
            if begin:
                ranges.append((begin, begin + int(blocks[place])))
        large_bytes += _bytes_in_malloc(blocks[is_large & ~has_address])
    for mapping, mapped_bytes in _mappings_in_memory(mapped):
        large[id(mapping)] = mapped_bytes
        if keep_large is not None:
            keep_large(mapping, mapped_bytes)
    by_type = {name: (counts[name], nbytes) for name, nbytes in sizes.most_common()}
    return PythonMemory(large_bytes, union_of(ranges), by_type, lengths, large, frozenset(arrow_addresses))


def _mappings_in_memory(mapped: list[tuple[Any, range]]) -> Iterator[tuple[Any, int]]:
    """Yield the objects of `mmap.mmap` that have anonymous memory, each with the bytes that the program has touched.

    Files and shared memory do not count here, because they are in rows of their own.
    """
    if not mapped:
        return
    residency = Residency(read_mappings(os.getpid()), os.getpid())
    for obj, memory in mapped:
        if nbytes := residency.bytes_of_use(memory, Use.ANONYMOUS):
            yield obj, nbytes


def _bytes_in_malloc(blocks: NDArray[np.int64]) -> int:
    """Return the bytes that malloc takes for some blocks: with a header, in steps of 16, and at least 32."""
    return int(np.maximum((blocks[blocks > 0] + _MALLOC_HEADER_BYTES + 15) // 16 * 16, 32).sum())


def _bytes_of_shapes(arrays: Iterable[Any], number: int) -> NDArray[np.int64]:
    """Return the bytes of the dimensions and the strides of each of some numpy arrays.

    They are in a block of their own. `sys.getsizeof` adds them to the bytes of the numbers.
    """
    return np.fromiter(map(_DIMENSIONS, arrays), dtype=np.int64, count=number) * _BYTES_PER_DIMENSION


_BYTES_PER_DIMENSION: Final = 16  # a size and a stride, which numpy keeps outside the object
_DIMENSIONS: Final = np.ndarray.__dict__["ndim"].__get__


class _Kind:
    """The memory layout of the objects of one class.

    Attributes:
        name: the class.
        is_array: whether its objects are numpy arrays.
        has_plain_size: whether C code measures its objects, so that no code of the program runs.
        has_ctypes_buffer: whether its objects are values of `ctypes` with memory beside the object.
        shows_address: whether the address of an object's large block is known.
        bytes_of_object: bytes of the object outside its large block; 0 if the object is in such a block itself.
        most_small_bytes: larger blocks come from malloc.
    """

    def __init__(self, cls: type) -> None:
        self.name = class_name(cls)
        self.is_array = any(base is np.ndarray for base in _MRO(cls))
        is_one_block = any(base is each for base in _MRO(cls) for each in _IN_ONE_BLOCK)
        self.has_plain_size = _has_plain_size(cls)
        self.has_ctypes_buffer = has_ctypes_buffer(cls)
        self.shows_address = self.is_array or cls is str or cls is bytes
        own_bytes = _BASIC_BYTES(cls) + (_GC_HEADER_BYTES if _FLAGS(cls) & _HAS_GC else 0)
        # such an object is itself a block from malloc, for example a `random.Random`
        is_large = own_bytes > _MOST_SMALL_BYTES and not self.is_array
        self.bytes_of_object = 0 if is_one_block or is_large else own_bytes
        self.most_small_bytes = 0 if self.is_array else _MOST_SMALL_BYTES  # numpy always calls malloc

    def address(self, obj: Any) -> int:
        """Return the address of the large block of an object."""
        return int(_ARRAY_INTERFACE(obj)["data"][0]) if self.is_array else id(obj)


_ARRAY_INTERFACE: Final = np.ndarray.__dict__["__array_interface__"].__get__


def class_name(cls: type) -> str:
    """Return the qualified name of a class, without running code of its metaclass."""
    module = _NAMESPACE(cls).get("__module__")
    if type(module) is not str:  # a class of C code has its module in another place
        module = type.__dict__["__module__"].__get__(cls)
    return f"{module}.{_QUALNAME(cls)}".removeprefix("builtins.")


def _has_plain_size(cls: type) -> bool:
    """Return True unless a class measures its objects with code of its own."""
    method = next(
        (_NAMESPACE(base)["__sizeof__"] for base in _MRO(cls) if "__sizeof__" in _NAMESPACE(base)), None
    )
    return isinstance(method, types.MethodDescriptorType)


_LEAST_LENGTH: Final = 64
"""Containers with at least so many entries are remembered. There are too many shorter ones. A guess."""

_SAMPLED_ENTRIES: Final = 8  # of each end of a container; a guess
_SAMPLED_REFERENTS: Final = (6, 3, 2, 2)
"""How many referents of an entry are measured, and of each of these, and so on: at most 132 objects. A guess."""


def _containers(objects: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Yield the larger containers and their lengths."""
    bases: dict[int, Any] = {}
    for obj in objects:
        cls = type(obj)
        base = bases.get(id(cls), False)
        if base is False:
            base = _container_base(cls)
            bases[id(cls)] = base
        if base is not None and (length := base.__len__(obj)) >= _LEAST_LENGTH:
            yield obj, length


def _container_base(cls: type) -> Any:
    return next((each for each in GROWING if any(each is one for one in _MRO(cls))), None)


def is_container(cls: type) -> bool:
    """Return whether a class is a dictionary, list, set or deque. It runs no code of a metaclass."""
    return _container_base(cls) is not None


def grown_containers(
    before: dict[int, int], most: int, *, listed_only: bool = False
) -> list[tuple[Any, int, int]]:
    """Return the containers that got most bytes of entries, with the number of new entries and about their bytes.

    Args:
        before: lengths by id, of an earlier :func:`python_memory`.
        most: how many to return.
        listed_only: whether to search only the containers that gc lists. This takes a third of the time, and hardly
            any memory.
    """
    found = []
    for objects in (gc.get_objects(),) if listed_only else _levels_of_objects():
        for container, length in _containers(objects):
            added = length - before.get(id(container), 0)
            if added > 0 and container is not before:
                found.append((container, length, added))
    # measure only now, because `_bytes_of` counts references, and a list of all objects refers to each
    del objects
    references = _References()
    grown: list[tuple[int, int, Any]] = [
        (int(added * _bytes_of_entry(container, length, references)), added, container)
        for container, length, added in found
    ]
    found.clear()
    grown.sort(key=lambda each: -each[0])
    return [(container, added, nbytes) for nbytes, added, container in grown[:most]]


def _bytes_of_entry(container: Any, length: int, references: _References) -> float:
    """Return about the bytes of an entry of a container, with its key. The new entries are at one end."""
    referents = gc.get_referents(container)
    number = len(referents)
    del referents[_SAMPLED_ENTRIES : max(number - _SAMPLED_ENTRIES, _SAMPLED_ENTRIES)]
    sampled = sum(_bytes_of(each, references, _SAMPLED_REFERENTS) for each in referents)
    return sampled / max(len(referents), 1) * number / length


def _bytes_of(obj: Any, references: _References, widths: tuple[int, ...]) -> float:
    """Return about the bytes of an object and of its referents. A few levels are enough to sort containers.

    Referents to which other objects refer too, such as the globals of a function, do not count.

    Args:
        obj: the object.
        references: returns its referents.
        widths: how many referents are measured on each level below it.
    """
    nbytes = float(sys.getsizeof(obj)) if _has_plain_size(type(obj)) else 0.0
    if not widths or id(type(obj)) in _LEAVES:
        return nbytes
    referents = references.of([obj])
    number = len(referents)
    del referents[_MOST_REFERENTS:]
    # a suspended call refers to its function and code first, and then to its variables
    owned = [each for each in referents if sys.getrefcount(each) <= _REFERENCES_OF_OWNED]
    share = number * len(owned) / max(len(referents), 1)
    referents.clear()
    sampled = [_bytes_of(each, references, widths[1:]) for each in owned[: widths[0]]]
    return nbytes + sum(sampled) / max(len(sampled), 1) * share


_MOST_REFERENTS: Final = 64  # of an object, whose references are counted; a guess
_REFERENCES_OF_OWNED: Final = 4  # the owner, our list, our variable, the argument of getrefcount


def _levels_of_objects() -> Iterator[list[Any]]:
    """Yield the objects that gc lists, then their referents that gc does not list, and so on."""
    level = gc.get_objects()
    if gc.get_freeze_count():  # gc lists no frozen objects: they are found from the modules
        level += sys.modules.values()
    level += _untracked_values_of_calls()
    known = _KnownObjects(level)
    # gc sees the variables of a generator that calls a function. Leave out this one, whose lists are memwatch's own.
    own = (at for at, obj in enumerate(level) if type(obj) is types.GeneratorType and obj.gi_code is _LEVELS)
    for at in reversed(list(own)):
        del level[at]
    yield level
    while level:
        level = known.referents_of(level)
        if level:
            yield level
            # dictionaries and tuples of plain values, which gc does not list, have referents of their own
            level = [obj for obj in level if id(type(obj)) not in _LEAVES]


_LEVELS: Final = _levels_of_objects.__code__
_MOST_CALLS: Final = 20_000
"""Running calls whose variables are read; they take about 0.1 s. A guess."""


def _untracked_values_of_calls() -> list[Any]:
    """Return the objects in variables of running calls that gc does not list, such as text, bytes and arrays.

    gc shows no variables of a running call, so an object that only a variable holds is the referent of nothing.
    """
    if "torch" not in sys.modules:  # the module below imports it, and the program may not want it
        return []
    from memwatch.heap.frames import read_locals, running_frames

    found: dict[int, Any] = {}
    for frame, _, _ in itertools.islice(running_frames(), _MOST_CALLS):
        for value in read_locals(frame).values():
            if not gc.is_tracked(value):
                found[id(value)] = value
    return list(found.values())


class _References:
    """The references that gc shows, and those of numpy arrays, which gc does not show.

    A view has no memory of its own. The memory belongs to the array, the bytes or the mapping to which the view refers.
    Often nothing else refers to this object.
    """

    def __init__(self) -> None:
        self._classes = subclasses_of(np.ndarray)  # alive as long as their ids are in use
        self._ids = frozenset(map(id, self._classes))

    def of(self, owners: Sequence[Any]) -> list[Any]:
        """Return the objects to which some objects refer."""
        found = gc.get_referents(*owners)
        for array in itertools.compress(owners, map(self._ids.__contains__, map(id, map(type, owners)))):
            if (base := base_of_array(array)) is not None:
                found.append(base)
            found += items_of_array(array)
        return found


class _KnownObjects:
    """The ids of the objects that were found: most of them in a sorted array, the latest in a small set.

    A frozen linked list has one new object in each level. Sorting the whole array for each of 100,000 levels took
    minutes. So the ids of small levels go into the set.

    Args:
        objects: the objects that are known at first.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        self._references = _References()
        self._sorted = np.sort(_ids_of(objects))
        self._latest: set[int] = set()

    def referents_of(self, level: list[Any]) -> list[Any]:
        """Return the referents of objects that were not known, each once; they are known from now on."""
        found: list[Any] = []
        found_ids: list[NDArray[np.int64]] = []
        for first in range(0, len(level), _PIECE):
            referents = self._references.of(level[first : first + _PIECE])
            ids, at = np.unique(_ids_of(referents), return_index=True)
            places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
            is_new = self._sorted[places] != ids
            if self._latest:
                is_new[is_new] = [number not in self._latest for number in ids[is_new].tolist()]
            found += map(referents.__getitem__, at[is_new].tolist())
            found_ids.append(ids[is_new])
            referents.clear()
        ids, at = np.unique(np.concatenate(found_ids), return_index=True)
        self._add(ids)
        return list(map(found.__getitem__, at.tolist()))

    def _add(self, ids: NDArray[np.int64]) -> None:
        if len(self._latest) + len(ids) <= len(self._sorted) // _SHARE_BESIDE:
            self._latest.update(ids.tolist())
            return
        latest = np.fromiter(self._latest, dtype=np.int64, count=len(self._latest))
        self._sorted = np.sort(np.concatenate([self._sorted, latest, ids]))
        self._latest.clear()


_SHARE_BESIDE: Final = 32  # a guess: the set has at most so small a part of the ids


_LEAVES: Final = frozenset(
    map(id, (str, bytes, int, float, bool, type(None), bytearray, complex, types.CodeType))
)
"""Ids of classes without references. Ids, because a metaclass of the program may define `__hash__` or `__eq__`."""


def _ids_of(objects: Sequence[object]) -> NDArray[np.int64]:
    """Return the ids. `memwatch.heap.classes` is faster, but it imports torch, which the program may not have."""
    return np.fromiter(map(id, objects), dtype=np.int64, count=len(objects))


_MOST_LEVELS: Final = 8
"""Levels of dictionaries, tuples and arrays that gc does not list, below an object that it lists. A guess."""


_MEASURED_BY_C: Final = frozenset(map(id, (bytes, bytearray, str, io.BytesIO)))
"""Classes with many objects, by `id`. `sys.getsizeof` of these classes themselves runs no code of a subclass."""


def large_buffers(least_bytes: int, most: int) -> list[tuple[int, Any]]:
    """Return the largest texts, bytes and other buffers, each with its bytes, largest first.

    gc lists few of them. But it lists the objects and the running calls that refer to them. The search remembers only
    its results, because it runs when memory is short. It takes about half the time of `python_memory`.

    Args:
        least_bytes: smaller ones are left out.
        most: how many to return.
    """
    # a list keeps the classes alive as long as their ids are in use
    classes = [(cls, base) for base in BUFFERS for cls in subclasses_of(base)]
    bases = {id(cls): base for cls, base in classes if id(cls) not in _MEASURED_BY_C}
    found: dict[int, tuple[int, Any]] = {}
    for objects in _levels_of_objects() if gc.get_freeze_count() else _pieces_of_objects():
        types_of = list(map(id, map(type, objects)))
        plain = list(itertools.compress(objects, map(_MEASURED_BY_C.__contains__, types_of)))
        sizes = np.fromiter(map(sys.getsizeof, plain), dtype=np.int64, count=len(plain))
        for place in np.flatnonzero(sizes >= least_bytes).tolist():
            found[id(plain[place])] = int(sizes[place]), plain[place]
        for obj in itertools.compress(objects, map(bases.__contains__, types_of)):
            nbytes = bytes_of_buffer(obj, bases[id(type(obj))])
            if nbytes >= least_bytes:
                found[id(obj)] = nbytes, obj
    return sorted(found.values(), key=lambda each: -each[0])[:most]


def objects_on_pages(pages: NDArray[np.int64]) -> list[Any]:
    """Return the objects that begin on some pages of memory. A million objects take about 1 s.

    Args:
        pages: the addresses of the pages divided by the size of a page, sorted.
    """
    found: dict[int, Any] = {}
    for objects in _levels_of_objects() if gc.get_freeze_count() else _pieces_of_objects():
        numbers = _ids_of(objects) // PAGE_BYTES
        nearest = pages[np.minimum(np.searchsorted(pages, numbers), len(pages) - 1)]
        for place in np.flatnonzero(nearest == numbers).tolist():
            found[id(objects[place])] = objects[place]
    return list(found.values())


def _pieces_of_objects() -> Iterator[list[Any]]:
    """Yield the objects that gc lists, and the objects to which they refer, in pieces. Objects may come several times.

    Unlike `_levels_of_objects`, it remembers no object, so it needs memory for one piece only.
    """
    references = _References()
    classes = [dict, tuple, *subclasses_of(np.ndarray)]
    kinds = frozenset(map(id, classes))
    yield _untracked_values_of_calls()
    listed = gc.get_objects()
    for first in range(0, len(listed), _PIECE):
        level = listed[first : first + _PIECE]
        yield level
        for _ in range(_MOST_LEVELS):
            referents = references.of(level)
            if not referents:
                break
            yield referents
            inner = itertools.compress(referents, map(kinds.__contains__, map(id, map(type, referents))))
            level = list({id(obj): obj for obj in inner if not gc.is_tracked(obj)}.values())
