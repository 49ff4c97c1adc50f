"""Storages whose memory another object uses and keeps: a DLPack capsule, or a storage made from one or from a buffer.

The reference lies in C++, inside a deleter, where nothing can be read. That both use the same addresses tells it,
and that a storage which borrows its memory cannot be resized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch._torch.tensors import data_address_of, device_of
from memwatch.heap.autograd import NativeEdge
from memwatch.heap.capsules import capsule_address
from memwatch.heap.tensors import answers_by_code, is_simulated, quiet, storage_bytes, storage_of
from memwatch.kinds.edges import EdgeKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def shared_memory_edges(
    storages: Iterable[torch.UntypedStorage], tensors: Iterable[torch.Tensor], capsules: Iterable[object]
) -> Iterator[tuple[object, NativeEdge]]:
    """Yield which other objects keep the memory of some storages, and the reference.

    Args:
        storages: the storages to find.
        tensors: all that are known, each over its own storage.
        capsules: capsules of any kind.
    """
    with quiet():
        shown = [(storage, tensor) for tensor in tensors if (storage := _storage_of(tensor)) is not None]
        begins = {id(storage): _begin_of(tensor) for storage, tensor in shown}
        borrowing = (storage for storage, _ in shown if not torch.UntypedStorage.resizable(storage))
        owners: list[tuple[Any, int | None]] = [(storage, begins[id(storage)]) for storage in borrowing]
        owners += [(capsule, capsule_address(capsule)) for capsule in capsules]
        for storage in storages:
            begin = begins[id(storage)] if id(storage) in begins else torch.UntypedStorage.data_ptr(storage)
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
        tensors: returns all tensors; it is called only if a storage borrows its memory.
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
    # They come in the order in which they begin. So the earlier one that reaches farthest may contain this one.
    for device, _, end, key in sorted(memories, key=lambda each: (*each[:3], each[3] in borrowing)):
        if device != device_before:
            device_before, farthest = device, 0
        if key in borrowing and -end <= farthest:
            found.add(key)
        farthest = max(farthest, -end)
    return found


def memory_of(tensor: torch.Tensor) -> range:
    """Return the addresses of the bytes of a tensor's storage; empty where it shows none."""
    with quiet():
        storage = _storage_of(tensor)
        begin = None if storage is None else _begin_of(tensor)
        return range(0) if storage is None or not begin else range(begin, begin + storage_bytes(storage))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    return None if is_simulated(tensor) else storage_of(tensor)


def _begin_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage; asking the storage would copy a lazy clone."""
    if answers_by_code(type(tensor)):
        return None
    try:
        return data_address_of(tensor)
    except RuntimeError as error:  # no memory of its own
        pass_on(error)
        return None
