"""Freeze the results of a program into plain values that compare bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def freeze(value: Any) -> Any:
    """Return plain values that differ if two results differ in a bit, or in the type, layout or node of a tensor.

    A fake or meta tensor has no bits. Sets, and objects of other types than those below, are compared by their `repr`.
    """
    if isinstance(value, Tensor):
        return _freeze_tensor(value)
    if isinstance(value, nn.Module):
        state = [*value.named_parameters(), *value.named_buffers()]
        return ("module", type(value).__name__, [(name, freeze(tensor)) for name, tensor in state])
    if isinstance(value, torch.optim.Optimizer):
        return ("optimizer", freeze(value.state_dict()))
    if isinstance(value, Mapping):
        return ("mapping", [(str(key), freeze(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [freeze(item) for item in value])
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, BaseException):
        return ("exception", type(value), str(value))
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(repr, value)))
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value).__name__, repr(value))


def _freeze_tensor(tensor: Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        facts = [
            type(tensor),
            tensor.dtype,
            str(tensor.device),
            str(tensor.layout),
            tensor.requires_grad,
            tensor.is_leaf,
        ]
        facts += [
            tensor._version if not tensor.is_inference() else "inference",
            _shape(tensor),
            _node(tensor),
        ]
        grad = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    return ("tensor", *facts, _bits(tensor), None if grad is None else freeze(grad))


def _shape(tensor: Tensor) -> Any:
    if tensor.is_nested:
        return "nested"
    strides = tensor.stride() if tensor.layout is torch.strided and not tensor.is_mkldnn else None
    return (tuple(tensor.shape), strides)


def _node(tensor: Tensor) -> str:
    node = tensor.grad_fn
    return "" if node is None else node.name()


def _bits(tensor: Tensor) -> Any:
    """Return the bits of a tensor of any layout."""
    tensor = tensor.detach()
    if is_traceable_wrapper_subclass(tensor):
        return [(name, freeze(getattr(tensor, name))) for name in tensor.__tensor_flatten__()[0]]
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
            return "no bits"
        if tensor.is_nested:
            return [_bits(part) for part in tensor.unbind()]
        if tensor.is_quantized:
            return (str(tensor.qscheme()), _bits(tensor.int_repr()))
        if tensor.is_mkldnn:
            tensor = tensor.to_dense()
        if tensor.layout is torch.sparse_coo:
            return (tensor.is_coalesced(), _bits(tensor._indices()), _bits(tensor._values()))
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [_bits(part) for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [_bits(part) for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values())]
        plain = tensor.as_subclass(Tensor).resolve_conj().resolve_neg().contiguous().cpu()
        if plain.dim() == 0:
            plain = plain.reshape(1)
        return hashlib.sha1(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a result; for a module, its parameters and buffers."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, Mapping):
        return tensors_in(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
