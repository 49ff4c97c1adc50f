"""References in C outside autograd that gc never shows: numpy arrays, torch futures, and shared memory.

numpy does not take part in garbage collection. ``tensor.numpy()`` refers to the tensor, and an array of objects
refers to each of them, but gc shows neither reference. If a tuple or dictionary holds only arrays, numbers and texts,
gc does not list it either.

Another object may use the memory of a storage and keep it alive: a DLPack capsule, or a second storage that was made
from a capsule or a buffer. C++ holds that reference in a deleter, which memwatch cannot read. memwatch compares
addresses instead: both objects use the same addresses. It compares only capsules and storages that cannot be resized,
because a storage that borrows its memory cannot.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, filterfalse
from operator import not_
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.jit import Future, ScriptModule, tensors_of_script_module
from memwatch._torch.tensors import data_address_of, device_of
from memwatch.containers import base_of_array, items_of_array, subclasses_of
from memwatch.heap.autograd import NativeEdge
from memwatch.heap.classes import class_ids, derives, ids_of, is_a
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import (
    Capsule,
    answers_by_code,
    capsule_address,
    is_simulated,
    quiet,
    storage_bytes,
    storage_of,
)
from memwatch.kinds.edges import EdgeKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_LEAVES: Final = [id(cls) for cls in (int, str, float, bytes, bool, complex, type(None), type, CodeType)]
"""The ids of classes. If gc does not list an object of one of these classes, the object refers to no tensor."""
_CHUNK: Final = 10_000  # objects whose references are listed at a time; a guess


def keeps_in_c(cls: type) -> bool:
    """Return True if a class keeps references that gc does not show and that :func:`c_held_edges` reads."""
    return derives(cls, np.ndarray) or derives(cls, Future) or derives(cls, ScriptModule)


def c_held_edges(obj: Any) -> list[NativeEdge]:
    """List the references of a numpy array, a finished torch future or a scripted module.

    No code of a subclass runs.
    """
    if is_a(obj, Future):
        return _result(obj)
    if is_a(obj, ScriptModule):
        return _scripted(obj)
    edges = (
        [] if (base := base_of_array(obj)) is None else [NativeEdge(EdgeKind.NUMPY_BASE, base, hidden=False)]
    )
    edges += [
        NativeEdge(EdgeKind.ITEM, item, position=position, hidden=False)
        for position, item in enumerate(items_of_array(obj))
    ]
    return edges


def _result(future: Any) -> list[NativeEdge]:
    try:
        done = Future.done(future)
        return [NativeEdge(EdgeKind.FUTURE_RESULT, Future.value(future), hidden=False)] if done else []
    except Exception:
        # The operation failed, and the future raises its error again. `pass_on` is not called: if a signal handler
        # raised that error, it did so earlier and not now.
        return []


def results_of(future: Any) -> list[Any]:
    """Return the result of a torch future. If it is a list or tuple, return its items.

    The future of a collective makes a new list at each call, so the list itself is not an object of the program.
    """
    results: list[Any] = []
    for edge in _result(future):
        made: Any = edge.target
        results += made if type(made) is list or type(made) is tuple else [made]
    return results


def _scripted(module: Any) -> list[NativeEdge]:
    inside = (instance_dict(module) or {}).get("_c")
    return [
        NativeEdge(
            EdgeKind.PARAMETER if each.is_parameter else EdgeKind.BUFFER, each.tensor, each.name, hidden=False
        )
        for each in tensors_of_script_module(inside)
    ]


class Unlisted:
    """The references from objects that gc lists to objects that it does not list.

    Attributes:
        leading: the targets that may lead to a tensor, by `id`: arrays, capsules, and tuples and dictionaries that gc
            does not track.
    """

    def __init__(self) -> None:
        self.leading: dict[int, object] = {}
        self._classes = _untracked_kinds()
        self._kinds = list(map(id, self._classes))
        self._owners: list[NDArray[np.int32]] = []
        self._ids: list[NDArray[np.int64]] = []

    def note(self, objects: Sequence[object], ids: NDArray[np.int64], owners: NDArray[np.int64]) -> None:
        """Add some references.

        Args:
            objects: the targets.
            ids: the id of each target.
            owners: the position of the owner of each target.
        """
        classes = ids_of(tuple(map(type, objects)))
        leads = ~_is_one_of(classes, _LEAVES)
        self._owners.append(owners[leads].astype(np.int32))
        self._ids.append(ids[leads])
        of_kinds = [objects[place] for place in np.flatnonzero(_is_one_of(classes, self._kinds)).tolist()]
        self.leading.update((id(obj), obj) for obj in filterfalse(gc.is_tracked, of_kinds))

    def references(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the owner of each reference, and the id of its target."""
        owners = np.concatenate([np.empty(0, dtype=np.int32), *self._owners])
        return owners, np.concatenate([np.empty(0, dtype=np.int64), *self._ids])


def _is_one_of(ids: NDArray[np.int64], few: Sequence[int]) -> NDArray[np.bool_]:
    """Return the same as `np.isin`. It is faster for a few ids, because `np.isin` first prepares its arrays."""
    found = np.zeros(len(ids), dtype=bool)
    for each in few:
        found |= ids == each
    return found


def _untracked_kinds() -> list[type]:
    return [dict, tuple, Capsule, *subclasses_of(np.ndarray)]


def untracked(
    *listed: Sequence[object], are_listed: Callable[[Iterable[int]], Sequence[bool]]
) -> list[object]:
    """Find the arrays, capsules, and untracked tuples and dictionaries to which listed objects refer.

    Args:
        *listed: lists of objects whose references are followed.
        are_listed: takes ids of objects. Returns for each id whether that object is listed already.

    Returns:
        The objects found. Objects that only these refer to are among them.
    """
    classes = _untracked_kinds()  # keeps the classes alive as long as their ids are in use
    kinds = set(map(id, classes))
    arrays = kinds - class_ids(dict, tuple, Capsule)
    found: dict[int, object] = {}
    todo = listed
    while any(todo):
        fresh: dict[int, object] = {}
        for part in chain.from_iterable(map(_parts, todo)):
            among = compress(part, map(arrays.__contains__, map(id, map(type, part))))
            behind = [edge.target for obj in among for edge in c_held_edges(obj)]
            near = [*gc.get_referents(*part), *behind]
            of_kinds = compress(near, map(kinds.__contains__, map(id, map(type, near))))
            fresh.update((id(obj), obj) for obj in filterfalse(gc.is_tracked, of_kinds))
        unlisted = compress(fresh, map(not_, are_listed(fresh)))
        new = {key: fresh[key] for key in unlisted if key not in found}
        found.update(new)
        todo = (list(new.values()),)
    return list(found.values())


def _parts(listed: Sequence[object]) -> Iterator[Sequence[object]]:
    return (listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK))


def shared_memory_edges(
    storages: Iterable[torch.UntypedStorage], tensors: Iterable[torch.Tensor], capsules: Iterable[object]
) -> Iterator[tuple[object, NativeEdge]]:
    """Yield each object that keeps the memory of one of some storages alive, with its reference to that storage.

    The object is a DLPack capsule, or another storage that uses the same addresses.

    Args:
        storages: the storages whose owners are wanted.
        tensors: all known tensors. Their storages are the other storages.
        capsules: the capsules, DLPack's and others.
    """
    with quiet():
        shown = [(storage, tensor) for tensor in tensors if (storage := _storage_of(tensor)) is not None]
        begins = {id(storage): _begin_of(tensor) for storage, tensor in shown}
        borrowing = (storage for storage, _ in shown if not torch.UntypedStorage.resizable(storage))
        owners: list[tuple[Any, int | None]] = [(storage, begins[id(storage)]) for storage in borrowing]
        owners += [(capsule, capsule_address(capsule)) for capsule in capsules]
        for storage in storages:
            begin = begins[id(storage)] if id(storage) in begins else _begin_without_tensor(storage)
            if not begin:
                continue
            end = begin + storage_bytes(storage)
            for owner, address in owners:
                if address is not None and begin <= address < end and owner is not storage:
                    yield owner, NativeEdge(EdgeKind.SHARED_MEMORY, storage, hidden=False)


def borrowed_memories(
    storages: Iterable[torch.UntypedStorage], tensors: Callable[[], Iterable[torch.Tensor]]
) -> set[int]:
    """Return the ids of the storages whose memory is part of another storage's memory, or all of it.

    Args:
        storages: the storages to test.
        tensors: returns all tensors. It is called only if one of the storages cannot be resized.
    """
    borrowing = {id(each) for each in storages if not torch.UntypedStorage.resizable(each)}
    if not borrowing:
        return set()
    memories: list[tuple[str, int, int, int]] = []  # device, begin, end reversed, id
    with quiet():
        shown = {
            id(storage): (storage, tensor)
            for tensor in tensors()
            if (storage := _storage_of(tensor)) is not None
        }
        for key, (storage, tensor) in shown.items():
            memory = memory_of(tensor)
            if memory:
                memories.append((str(device_of(storage)), memory.start, -memory.stop, key))
        shown.clear()
    found = set()
    device_before, farthest = "", 0
    # The memories are in the order of their first addresses. So if an earlier memory contains this one, the farthest
    # end among the earlier memories shows it. A borrowed memory comes after an equal memory that is not borrowed.
    for device, _, end, key in sorted(memories, key=lambda each: (*each[:3], each[3] in borrowing)):
        if device != device_before:
            device_before, farthest = device, 0
        if key in borrowing and -end <= farthest:
            found.add(key)
        farthest = max(farthest, -end)
    return found


def memory_of(tensor: torch.Tensor) -> range:
    """Return the addresses of the bytes of a tensor's storage. The range is empty if the storage has no memory."""
    with quiet():
        storage = _storage_of(tensor)
        begin = None if storage is None else _begin_of(tensor)
        return range(0) if storage is None or not begin else range(begin, begin + storage_bytes(storage))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    return None if is_simulated(tensor) else storage_of(tensor)


_META: Final = "meta"  # the device of tensors without memory


def _begin_without_tensor(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage whose tensors are unknown; 0 if it has no memory.

    torch would print a warning if the address of a fake tensor's storage was read, so the device is tested first. For
    the storage of a wrapper subclass, torch raises an error.
    """
    if device_of(storage).type == _META:
        return 0
    try:
        return torch.UntypedStorage.data_ptr(storage)
    except RuntimeError as error:
        pass_on(error)
        return 0


def _begin_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage, if it has memory.

    The address is read from the tensor: `data_ptr()` of the storage would copy the data of a lazy clone.
    """
    if answers_by_code(type(tensor)):
        return None
    try:
        return data_address_of(tensor)
    except RuntimeError as error:  # no memory of its own
        pass_on(error)
        return None
