"""Copies of tensors. The bytes lie in host memory that torch does not count, and the tensors may die."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.tensors import address_of
from memwatch.encoding import HostBytes, copy_in, copy_out, new_storage
from memwatch.heap.c_held import memory_of
from memwatch.heap.tensors import is_simulated, quiet, storage_bytes, storage_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable


_WHOLE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class KeptStorage:
    """The bytes of a storage at one moment."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = weakref.ref(storage)
        self._device = storage.device
        self._bytes: HostBytes = copy_out(storage)
        self.is_restored = False  # in this round of restoring

    @property
    def nbytes(self) -> int:
        """The size of the storage."""
        return len(self._bytes)

    def is_of(self, storage: torch.UntypedStorage) -> bool:
        """Return True if these are bytes of this very storage."""
        return self._storage() is storage

    def differs(self) -> bool:
        """Return True if the storage has other bytes now, or is gone."""
        storage = self._storage()
        return storage is None or storage.nbytes() != self.nbytes or (copy_out(storage) != self._bytes).any()

    def restored(self) -> torch.UntypedStorage:
        """Return the storage with these bytes; a new one if it is gone or has another size."""
        storage = self._storage()
        if storage is None or storage.nbytes() != self.nbytes:
            storage = new_storage(self.nbytes, self._device)
            self._storage = weakref.ref(storage)
            self.is_restored = False
        if not self.is_restored:
            copy_in(self._bytes, storage)
            self.is_restored = True
        return storage


@dataclass
class KeptTensor:
    """A tensor at one moment: its window on a storage, its gradient, and a weak reference to the tensor itself."""

    tensor: weakref.ref[torch.Tensor]
    storage: KeptStorage
    window: tuple[torch.dtype, torch.Size, tuple[int, ...], int]
    requires_grad: bool
    is_leaf: bool
    grad: KeptTensor | None

    def restored(self) -> torch.Tensor:
        """Return the tensor with its bytes and its gradient; a new one, without a graph, if it is gone."""
        storage, found = self.storage.restored(), self.tensor()
        if found is None:
            found = self._view_of(storage).requires_grad_(self.requires_grad)
            self.tensor = weakref.ref(found)
        elif storage_of(found) is not storage:
            found.data = self._view_of(storage)
        if self.is_leaf and autograd_state(found).is_leaf:
            if found.requires_grad != self.requires_grad:
                found.requires_grad_(self.requires_grad)
            gradient = None if self.grad is None else self.grad.restored()
            if found.grad is not gradient:
                found.grad = gradient
        return found

    def _view_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        dtype, size, stride, offset = self.window
        empty: Any = torch.empty(0, dtype=dtype, device=storage.device)
        view: torch.Tensor = empty.set_(storage, offset, size, stride)
        return view


class KeptTensors:
    """Keeps tensors. Tensors of one storage share one copy of its bytes."""

    def __init__(self) -> None:
        self._storages: dict[int, KeptStorage] = {}
        self._tensors: dict[int, KeptTensor] = {}

    def begin_restoring(self) -> None:
        """Copy the bytes of each storage back once, at the next request for it."""
        for kept in self._storages.values():
            kept.is_restored = False

    def keep(self, tensor: torch.Tensor) -> KeptTensor | None:
        """Return a copy of the tensor; None for fake, sparse and composed tensors and wrappers, which own no bytes."""
        known = self._tensors.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known
        with quiet(), torch.no_grad():
            storage = None if is_simulated(tensor) else storage_of(tensor)
            if storage is None or not _has_memory(tensor, storage):
                return None
            kept = self._storages.get(address_of(storage))
            if kept is None or not kept.is_of(storage):
                kept = self._storages[address_of(storage)] = KeptStorage(storage)
            window = (tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
            state = autograd_state(tensor)
            gradient = tensor.grad if state.is_leaf else None
            found = KeptTensor(
                weakref.ref(tensor), kept, window, state.requires_grad, state.is_leaf,
                None if gradient is None else self.keep(gradient),
            )  # fmt: skip
            self._tensors[id(tensor)] = found
            return found


def _has_memory(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Return False for a storage with a size and no memory, as of a wrapper: to read it ends the process."""
    if not storage_bytes(storage) or memory_of(tensor):
        return True
    try:
        return bool(torch.UntypedStorage.data_ptr(storage))  # asked last, because it copies a lazy clone
    except RuntimeError as error:  # it never had memory
        pass_on(error)
        return False


def fingerprint(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a digest of the values of tensors, bit for bit; fake and sparse tensors are left out."""
    digest = hashlib.blake2b()
    with quiet(), torch.no_grad(), disable_torch_dispatch():
        for tensor in tensors:
            if is_simulated(tensor) or storage_of(tensor) is None:
                continue
            digest.update(f"{tensor.dtype} {tuple(tensor.size())}".encode())
            numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            # numpy does not know all types, so it gets a view of whole numbers. torch does not count numpy's copy.
            digest.update(numbers.detach().view(_WHOLE[numbers.element_size()]).cpu().numpy().tobytes())
    return digest.digest()
