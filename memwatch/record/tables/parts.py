"""Find the storages that hold a tensor's bytes. A wrapper or a sparse tensor has the storages of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.tensors import TENSOR_DICT, TensorBase, coo_parts_of, data_address_of
from memwatch.heap.classes import class_ids, is_a
from memwatch.heap.inner_tensors import inner_tensors
from memwatch.heap.names import class_name
from memwatch.heap.tensors import is_composed, layout_of, mro_of, nbytes_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN: Final = class_ids(Tensor, Parameter)
_crow_indices = TensorBase.crow_indices
_col_indices = TensorBase.col_indices
_ccol_indices = TensorBase.ccol_indices
_row_indices = TensorBase.row_indices
_values: Final = TensorBase.values
_MOST_CONTAINERS: Final = 1_000
"""Lists, tuples and dicts that are searched in one call's arguments: these may hold a whole data set. A guess."""


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors whose storages hold the bytes of a tensor: itself, or its parts."""
    if id(type(tensor)) not in _PLAIN and is_composed(type(tensor)):
        for part in inner_tensors(tensor):
            yield from plain_parts(part)
        return
    layout = layout_of(tensor)
    if layout is torch.strided:
        yield tensor
    else:
        yield from _sparse_parts(tensor, layout)


def _sparse_parts(tensor: Tensor, layout: torch.layout) -> tuple[Tensor, ...]:
    """Return the parts of a sparse tensor. The program's dispatch modes do not see the ops that read them.

    Other layouts, such as that of MKL-DNN, have no parts.
    """
    with disable_torch_dispatch():
        if layout is torch.sparse_coo:
            return coo_parts_of(tensor)
        if layout is torch.sparse_csr or layout is torch.sparse_bsr:
            return _crow_indices(tensor), _col_indices(tensor), _values(tensor)
        if layout is torch.sparse_csc or layout is torch.sparse_bsc:
            return _ccol_indices(tensor), _row_indices(tensor), _values(tensor)
    return ()


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in the arguments of a call, also inside nested lists, tuples and dicts."""
    waiting, looked_into = [iter(values)], set[int]()
    while waiting:
        for value in waiting.pop():
            if is_a(value, Tensor):
                yield value
                continue
            # each container once, because it may contain itself
            is_new = id(value) not in looked_into and len(looked_into) < _MOST_CONTAINERS
            if is_new and (items := _items_of(value)) is not None:
                looked_into.add(id(value))
                waiting.append(items)


def _items_of(value: Any) -> Iterator[Any] | None:
    """Return the items of a list or tuple, or the values of a dict. None for other objects.

    No method of the object's class runs.
    """
    for base in mro_of(type(value)):
        if base is list or base is tuple:
            return base.__iter__(value)
        if base is dict:
            return iter(dict.values(value))
    return None


def kind_without_storage(tensor: Tensor) -> str:
    """Return a name for a tensor without a storage.

    It is the layout unless that is strided, otherwise the device of a plain tensor, or the class of any other.
    """
    layout = layout_of(tensor)
    if layout is not torch.strided:
        return str(layout).removeprefix("torch.")
    return TENSOR_DICT["device"].__get__(tensor).type if type(tensor) is Tensor else class_name(type(tensor))


def address_or_zero(tensor: Tensor) -> int:
    """Return the address of the first byte of a tensor's storage; 0 if it has no memory."""
    try:
        return data_address_of(tensor)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        pass_on(error)
        return 0


def known_bytes(nbytes: Any) -> int:
    """Return a size in bytes; 0 for a symbolic size, which only fake tensors have. They use no memory."""
    return nbytes if type(nbytes) is int else 0


def tensor_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes; 0 if torch has none, as for a sparse COO tensor."""
    try:
        return known_bytes(nbytes_of(tensor))
    except (RuntimeError, NotImplementedError) as error:
        pass_on(error)
        return 0
