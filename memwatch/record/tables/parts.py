"""Where the bytes of a tensor lie: its own storage, or those of the parts of a wrapper or sparse tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch._torch.modes import is_wrapper_subclass
from memwatch._torch.storages import data_address_of
from memwatch._torch.tensors import coo_parts_of
from memwatch.heap.tensors import mro_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_CONTAINERS: Final = 1_000
"""Lists, tuples and dicts that are looked into for one call: its arguments may be a corpus of words."""


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors whose storages hold the bytes of a tensor: itself, or its parts."""
    wrapper: Any = tensor
    if is_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            part = getattr(wrapper, name)
            if isinstance(part, Tensor):
                yield from plain_parts(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from coo_parts_of(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in the arguments of a call, also those in lists, tuples and dicts, nested ones included."""
    waiting, looked_into = [iter(values)], set[int]()
    while waiting:
        for value in waiting.pop():
            if isinstance(value, Tensor):
                yield value
                continue
            is_new = (
                id(value) not in looked_into and len(looked_into) < _MOST_CONTAINERS
            )  # it may hold itself
            if is_new and (items := _items_of(value)) is not None:
                looked_into.add(id(value))
                waiting.append(items)


def _items_of(value: Any) -> Iterator[Any] | None:
    """Return what a list, tuple or dict holds, whatever its class overrides; None for all else."""
    for base in mro_of(type(value)):
        if base is list or base is tuple:
            return base.__iter__(value)
        if base is dict:
            return iter(dict.values(value))
    return None


def kind_without_storage(tensor: Tensor) -> str:
    """Return what to call a tensor that shows no storage: its layout, or its class, or its device."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return tensor.device.type if type(tensor) is Tensor else type(tensor).__name__


def address_or_zero(tensor: Tensor) -> int:
    """Return the address of a tensor's first byte; 0 if it has no memory."""
    try:
        return data_address_of(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return 0


def known_bytes(nbytes: Any) -> int:
    """Return a size in bytes; 0 for a symbolic one, as of dynamo's fake tensors, which have no memory."""
    return nbytes if nbytes.__class__ is int else 0


def tensor_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor; 0 for one that has no single size, as a nested tensor."""
    try:
        return known_bytes(tensor.nbytes)
    except (RuntimeError, NotImplementedError):
        return 0
