"""Tensors, autograd nodes and storages: recognise and read them without running their Python code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd import FunctionBase
from memwatch._torch.overrides import disable_torch_function
from memwatch._torch.storages import storage_bytes_of
from memwatch._torch.tensors import TENSOR_DICT, untyped_storage_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_MRO: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_TYPE_DICT: Final[Callable[[type], dict[str, Any]]] = type.__dict__["__dict__"].__get__
# What one storage weighs inside a capture or a diagnosis; sparse and opaque tensors have none of their own.
_NO_STORAGE: Final = (NotImplementedError, RuntimeError, AttributeError)


def mro_of(cls: type) -> tuple[type, ...]:
    """Return the bases of a class, whatever its metaclass overrides."""
    return _MRO(cls)


def type_dict(cls: type) -> dict[str, Any]:
    """Return the namespace of a class, whatever its metaclass overrides."""
    return _TYPE_DICT(cls)


def is_tensor(obj: object) -> bool:
    """Return True for a tensor, by its real type: no ``__instancecheck__``, no ``__class__``."""
    return torch.Tensor in mro_of(type(obj))


def is_storage(obj: object) -> bool:
    """Return True for a block of tensor memory."""
    return torch.UntypedStorage in mro_of(type(obj))


def is_python_node(obj: object) -> bool:
    """Return True for the node (``ctx``) of a custom ``autograd.Function``."""
    return FunctionBase in mro_of(type(obj))


def is_node(obj: object) -> bool:
    """Return True for an autograd node, of C++ or of a custom ``autograd.Function``."""
    return is_node_type(type(obj))


def is_node_type(cls: type) -> bool:
    """Return True for a class of autograd nodes."""
    if FunctionBase in mro_of(cls):
        return True
    namespace = type_dict(cls)
    return "next_functions" in namespace and "register_prehook" in namespace


class TypeFilter:
    """Pick tensors, autograd nodes and storages out of many objects; knows each type once."""

    def __init__(self) -> None:
        self._known: dict[type, bool] = {}

    def __call__(self, obj: object) -> bool:
        """Return True for a tensor, an autograd node or a storage."""
        return self.wants(type(obj))

    def wants(self, cls: type) -> bool:
        """Return True for a class of tensors, autograd nodes or storages."""
        wanted = self._known.get(cls)
        if wanted is None:
            bases = mro_of(cls)
            wanted = torch.Tensor in bases or torch.UntypedStorage in bases or is_node_type(cls)
            self._known[cls] = wanted
        return wanted


def is_simulated(tensor: torch.Tensor) -> bool:
    """Return True if a tensor only pretends to have memory: meta and fake tensors."""
    if TENSOR_DICT["is_meta"].__get__(tensor):
        return True
    return any(base.__name__ in {"FakeTensor", "FunctionalTensor"} for base in mro_of(type(tensor)))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor, or None where it has none (sparse, opaque, wrapper subclasses).

    Call it under :func:`quiet`: a subclass would otherwise be asked.
    """
    if is_composed(type(tensor)):
        return None  # the storages are those of the inner tensors
    try:
        storage: torch.UntypedStorage = untyped_storage_of(tensor)
    except _NO_STORAGE as error:
        pass_on(error)
        return None
    return storage


def is_composed(cls: type) -> bool:
    """Return True if tensors of a class consist of inner tensors, which it names by ``__tensor_flatten__``."""
    return any("__tensor_flatten__" in type_dict(base) for base in mro_of(cls))


def storage_bytes(storage: torch.UntypedStorage) -> int:
    """Return the size of a storage in bytes; 0 where the storage refuses to say."""
    try:
        return storage_bytes_of(storage)
    except _NO_STORAGE as error:
        pass_on(error)
        return 0


def quiet() -> AbstractContextManager[object]:
    """Return a context in which no ``__torch_function__`` runs, neither of a subclass nor of a mode."""
    return disable_torch_function()
