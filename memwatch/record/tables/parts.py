"""Where the bytes of a tensor lie: its own storage, or those of the parts of a wrapper or sparse tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from memwatch._torch.modes import is_wrapper_subclass
from memwatch._torch.storages import data_address_of
from memwatch._torch.tensors import coo_parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """Yield the tensors in the arguments of a call, also those in its lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif value.__class__ in (list, tuple):
            yield from (item for item in value if isinstance(item, Tensor))
        elif value.__class__ is dict:
            yield from (item for item in value.values() if isinstance(item, Tensor))


def kind_without_storage(tensor: Tensor) -> str:
    """Return what to call a tensor that shows no storage: its layout, or its class."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return type(tensor).__name__


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
