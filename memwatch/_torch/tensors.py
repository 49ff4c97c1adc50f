"""Tensors and storages: their addresses, their private attributes, and reading them without running code of a subclass.

| torch | here |
| --- | --- |
| torch._C._storage_address | address_of_storage_of (of a tensor) |
| storage._cdata | address_of (of a storage) |
| torch._C._data_address | data_address_of |
| torch._C.StorageBase.nbytes | storage_bytes_of |
| torch._C.StorageBase.device | device_of |
| torch._C._storage_Use_Count | use_count_of |
| torch._C.TensorBase | TensorBase |
| torch._C.TensorBase.__dict__ | TENSOR_DICT |
| torch._C.TensorBase.__dict__["_use_count"] | USE_COUNT (the descriptor), None if missing |
| torch._C.TensorBase.untyped_storage | untyped_storage_of |
| tensor._version | version_of(tensor) |
| tensor._nested_tensor_size() | nested_sizes_of(tensor) |
| tensor._indices(), tensor._values() | coo_parts_of(tensor) |
| torch._C._set_conj, torch._C._set_neg | set_conj, set_neg |
| "_grad", "_base", "_backward_hooks", "_post_accumulate_grad_hooks" | GRAD, BASE, BACKWARD_HOOKS, POST_GRAD_HOOKS |
| tensor._post_accumulate_grad_hooks | gradient_hooks(parameter) |
| "_indices", "_values" | INDICES, VALUES |
| torch._C._functorch.is_functorch_wrapped_tensor | is_wrapped |
| torch._C._functorch.get_unwrapped | unwrapped |
| torch._C._functorch.peek_interpreter_stack() is not None | is_transforming() |
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_identity: Final = Part(
    "storages are identified by their Python objects, which may raise a peak inside backward"
)
address_of: Final[Callable[[Any], int]] = _identity.reader("torch.UntypedStorage._cdata", id)
"""Return the number that identifies a storage while it lives: the address of its C++ object."""


def _through_its_object(tensor: Any) -> int:
    return address_of(tensor.untyped_storage())


_of_tensor: Final[Callable[[Any], int]] = _identity.take("torch._C._storage_address", _through_its_object)
address_of_storage_of: Final[Callable[[Any], int]] = _of_tensor if _identity.complete else _through_its_object
"""Return the same number for the storage of a tensor, without a Python object of it and without subclass code."""
IDENTITY_IS_ADDRESS: Final = _identity.complete
"""Whether these numbers are the same addresses as in C++."""


def _data_pointer(tensor: Any) -> int:
    return int(tensor.data_ptr()) - int(tensor.storage_offset()) * int(tensor.element_size())


data_address_of: Final[Callable[[Any], int]] = Part(
    "reading the address of a lazily cloned tensor copies it"
).take("torch._C._data_address", _data_pointer)
"""Return the address of the first byte of a tensor's storage. A lazy clone stays lazy."""


def _nbytes(storage: Any) -> int:
    return int(storage.nbytes())


storage_bytes_of: Final[Callable[[Any], int]] = Part(
    "the size of a storage is read through its public method"
).take("torch._C.StorageBase.nbytes", _nbytes)
"""Return the size of a storage in bytes."""


def _device(storage: Any) -> Any:
    return storage.device


device_of: Final[Callable[[Any], Any]] = Part(
    "the device of a storage is read through its public property"
).reader("torch._C.StorageBase.device", _device)
"""Return the device of a storage."""


_use_count: Final[Callable[[int], int] | None] = Part("it takes longer to report a known leak again").take(
    "torch._C._storage_Use_Count", None
)


def use_count_of(storage: Any) -> int | None:
    """Return how many owners a storage has in C++, including its Python object. None if this torch cannot tell."""
    return None if _use_count is None else _use_count(address_of(storage))


TensorBase: Final[Any] = Part("tensors are read through their public class, which a subclass may see").take(
    "torch._C.TensorBase", torch.Tensor
)
"""The C class beneath `torch.Tensor`. Its descriptors run no code of a subclass."""


GRAD, BASE = "_grad", "_base"
"""Attributes that read the gradient, and the base of a view, without a warning."""
BACKWARD_HOOKS, POST_GRAD_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
"""Attributes that hold the dictionaries of a tensor's hooks."""
INDICES, VALUES = "_indices", "_values"
"""Methods that return the parts of a COO tensor, coalesced or not."""

_edges: Final = Part("gradients, bases or hooks of tensors are not searched for leaks")


def _descriptors() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(TensorBase.__mro__):
        found.update(vars(base))
    for path in (
        "torch._C.TensorBase._grad",
        "torch._C.TensorBase._base",
        "torch._C.TensorBase._backward_hooks",
        "torch._C.TensorBase._post_accumulate_grad_hooks",
    ):
        if _edges.take(path, None) is None:
            found.pop(path.rpartition(".")[2], None)
    return found


TENSOR_DICT: Final[Mapping[str, Any]] = _descriptors()
"""The descriptors of `TensorBase` by name, without private ones that this torch lacks."""
untyped_storage_of: Final[Callable[[Any], torch.UntypedStorage]] = TensorBase.untyped_storage
"""Return the storage of a tensor, unless a `__torch_function__` of a mode or subclass steps in."""

USE_COUNT: Final[Any] = Part("the holder of a tensor that only C++ holds may be unknown").take(
    "torch._C.TensorBase._use_count", None
)
"""The descriptor of the method that counts the owners of a tensor in C++."""

version_of: Final[Callable[[Any], int]] = Part(
    "an in-place change of a saved tensor is not noticed while it is recorded"
).reader("torch._C.TensorBase._version", lambda tensor: 0)
"""Return the version of a tensor: the number of its changes in place."""


def _unknown_sizes(tensor: Any) -> str:
    return "?"


_nested: Final = Part("an error about a nested tensor does not show its sizes")
_nested_sizes: Final[Callable[[Any], Any]] = _nested.take("torch.Tensor._nested_tensor_size", _unknown_sizes)


def gradient_hooks(parameter: torch.Tensor) -> dict[Any, Any]:
    """Return the dictionary of the hooks that run when the gradient of a parameter is complete; an empty one is set."""
    if getattr(parameter, POST_GRAD_HOOKS) is None:
        setattr(parameter, POST_GRAD_HOOKS, OrderedDict())
    hooks: dict[Any, Any] = getattr(parameter, POST_GRAD_HOOKS)
    return hooks


def nested_sizes_of(tensor: Any) -> Any:
    """Return the sizes of the parts of a nested tensor."""
    return _nested_sizes(tensor)


_coo: Final = Part("bytes of uncoalesced COO tensors do not count")
_indices: Final[Any] = _coo.take("torch.Tensor._indices", None)
_values: Final[Any] = _coo.take("torch.Tensor._values", None)


def coo_parts_of(tensor: Any) -> tuple[Any, ...]:
    """Return indices and values of a COO tensor, coalesced or not."""
    if _coo.complete:
        return _indices(tensor), _values(tensor)
    return (tensor.indices(), tensor.values()) if tensor.is_coalesced() else ()


_windows: Final = Part("replay refuses tensors that are conjugated or negated lazily")
set_conj: Final[Callable[[Any, bool], None]] = _windows.required("torch._C._set_conj")
"""Mark a tensor as conjugated or not. No bytes change."""
set_neg: Final[Callable[[Any, bool], None]] = _windows.required("torch._C._set_neg")
"""Mark a tensor as negated or not. No bytes change."""


_wrappers: Final = Part("searches for leaks and holders skip tensors that torch.func wraps")
unwrapped: Final[Callable[[Any], Any]] = _wrappers.take(
    "torch._C._functorch.get_unwrapped", lambda tensor: None
)
"""Return the tensor inside a wrapper of torch.func."""
is_wrapped: Final[Callable[[Any], bool]] = _wrappers.take(
    "torch._C._functorch.is_functorch_wrapped_tensor", lambda tensor: False
)
"""Return True for a wrapper that torch.func makes."""

_peek: Final[Callable[[], Any]] = Part("`memwatch attach` may begin inside a transform of torch.func").take(
    "torch._C._functorch.peek_interpreter_stack", lambda: None
)


def is_transforming() -> bool:
    """Return True while this thread is inside a transform of torch.func, such as `vmap` or `grad`."""
    return _peek() is not None
