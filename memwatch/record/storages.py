"""Storage identity, birth and death, by weak references only.

The Python object of a storage lives exactly as long as the C++ storage (TORCH_FACTS: it is preserved), so
its `id` names the storage while it lives and a weak reference's callback marks its death, in whatever
thread the last reference goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memwatch.capture.schema import NONE, ORIGINS
from memwatch.record.clock import ticks
from memwatch.record.strings import Strings

BY_OP, BASELINE, EXTERNAL = ORIGINS.index("op"), ORIGINS.index("baseline"), ORIGINS.index("external")


class Alive(weakref.ref):  # type: ignore[type-arg]  # the stub's class is generic, the real one is not at run time
    """A weak reference to a living storage, with its number and size."""

    __slots__ = ("key", "nbytes", "number")
    number: int
    key: int
    nbytes: int


class Storages:
    """Number the storages the program touches; append their births, deaths and resizes."""

    def __init__(self, strings: Strings, ops_started: list[int]) -> None:
        self.live: dict[int, Alive] = {}
        self.births: list[int] = []
        self.deaths: list[int] = []
        self.resizes: list[int] = []
        self.live_bytes = 0
        self.count = 0
        self.unseen: set[str] = set()
        self.closed = False
        self._strings = strings
        self._ops_started = ops_started
        self._cpu = strings("cpu")
        self._devices: dict[torch.device, int] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}

    def number_of(self, tensor: Tensor, op: int, origin: int) -> int:
        """Return the storage number of `tensor`, giving birth to it at first sight; -1 if it has no storage."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            self.unseen.add(_kind_without_storage(tensor))
            return NONE
        alive = self.live.get(id(storage))
        return self.born(tensor, storage, op, origin) if alive is None else alive.number

    def born(self, tensor: Tensor, storage: torch.UntypedStorage, op: int, origin: int) -> int:
        """Append the birth of `storage`, first seen as the storage of `tensor`."""
        number = self.count
        self.count = number + 1
        nbytes = storage.nbytes()
        alive = Alive(storage, self._died)
        alive.number = number
        alive.key = key = id(storage)
        alive.nbytes = nbytes
        self.live[key] = alive
        self.live_bytes += nbytes
        try:
            address = torch._C._data_address(tensor)  # type: ignore[attr-defined]  # never copies a lazy clone
        except (RuntimeError, NotImplementedError, TypeError):
            address = 0
        device = self._cpu if tensor.is_cpu else self.device_id(tensor)
        self.births += (number, op, ticks(), address, nbytes, device, origin, self.shape_id(tensor))
        return number

    def _died(self, alive: Alive) -> None:
        if self.closed:
            return
        self.live.pop(alive.key, None)
        self.live_bytes -= alive.nbytes
        self.deaths += (alive.number, self._ops_started[0], ticks())

    def resized(self, tensor_or_storage: Any) -> None:
        """Append a resize if the storage changed its size since it was last seen."""
        storage = tensor_or_storage
        try:
            if isinstance(storage, Tensor):
                storage = storage.untyped_storage()
            alive, nbytes = self.live.get(id(storage)), storage.nbytes()
            if alive is not None and alive.nbytes != nbytes:
                self.live_bytes += nbytes - alive.nbytes
                alive.nbytes = nbytes
                address = storage.data_ptr() if nbytes else 0
                self.resizes.extend((alive.number, self._ops_started[0], ticks(), nbytes, address))
        except (NotImplementedError, RuntimeError):
            return

    def device_id(self, tensor: Tensor) -> int:
        """Return the string id of the device of `tensor`."""
        device = tensor.device
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = self._strings(str(device))
        return number

    def shape_id(self, tensor: Tensor) -> int:
        """Return the string id of dtype and shape of `tensor`, as ``float32[8, 64]``."""
        key = (tensor.dtype, tensor.shape)
        try:
            number = self._shapes.get(key)
            if number is None:
                text = f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
                number = self._shapes[key] = self._strings(text)
        except (RuntimeError, TypeError):  # symbolic or nested sizes cannot be hashed
            return self._strings(str(tensor.dtype).removeprefix("torch."))
        return number

    def close(self) -> None:
        """Stop listening to deaths; what is still alive was alive at the end."""
        self.closed = True
        self.live.clear()


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Give the tensors whose storages hold the bytes of `tensor`: itself, or the parts of a wrapper or sparse one."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from plain_parts(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def _kind_without_storage(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return type(tensor).__name__
