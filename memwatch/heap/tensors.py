"""Tensors, autograd nodes, storages and DLPack capsules: recognise and read them without running their Python code."""

from __future__ import annotations

import ctypes
import datetime
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd import FunctionBase
from memwatch._torch.modes import disable_torch_function
from memwatch._torch.tensors import TENSOR_DICT, device_of, storage_bytes_of, untyped_storage_of
from memwatch.heap.classes import ByClass, derives, is_a
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_MRO: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_TYPE_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
_TYPE_DICT: Final[Callable[[type], dict[str, Any]]] = type.__dict__["__dict__"].__get__
_LAYOUT, _IS_SPARSE, _IS_CPU, _IS_META, _DEVICE, _NBYTES, _SHAPE = (
    TENSOR_DICT[name].__get__
    for name in ("layout", "is_sparse", "is_cpu", "is_meta", "device", "nbytes", "shape")
)
_NO_STORAGE: Final = (NotImplementedError, RuntimeError, AttributeError)
"""The errors of tensors without a storage: sparse and opaque ones."""


def mro_of(cls: type) -> tuple[type, ...]:
    """Return the method resolution order of a class, without code of its metaclass."""
    return _MRO(cls)


def type_dict(cls: type) -> dict[str, Any]:
    """Return the namespace of a class, without code of its metaclass."""
    return _TYPE_DICT(cls)


def is_tensor(obj: object) -> bool:
    """Return True if the real type of an object is a class of tensors. No code of the program runs."""
    return is_a(obj, torch.Tensor)


def is_storage(obj: object) -> bool:
    """Return True for a block of tensor memory."""
    return is_a(obj, torch.UntypedStorage)


def is_python_node(obj: object) -> bool:
    """Return True for the node (``ctx``) of a custom ``autograd.Function``."""
    return is_a(obj, FunctionBase)


def is_node(obj: object) -> bool:
    """Return True for an autograd node, of C++ or of a custom ``autograd.Function``."""
    return is_node_type(type(obj))


def is_node_type(cls: type) -> bool:
    """Return True for a class of autograd nodes."""
    if derives(cls, FunctionBase):
        return True
    namespace = type_dict(cls)
    return "next_functions" in namespace and "register_prehook" in namespace


class TypeFilter:
    """Recognise tensors, autograd nodes and storages among many objects. It examines each class once.

    Attributes:
        wants: returns True for a class of tensors, autograd nodes or storages.
    """

    def __init__(self) -> None:
        self.wants: Final = ByClass(_is_wanted)

    def __call__(self, obj: object) -> bool:
        """Return True for a tensor, an autograd node or a storage."""
        return self.wants(type(obj))


def _is_wanted(cls: type) -> bool:
    return derives(cls, torch.Tensor) or derives(cls, torch.UntypedStorage) or is_node_type(cls)


def is_simulated(tensor: torch.Tensor) -> bool:
    """Return True for a tensor without memory: a meta, fake or functional tensor."""
    cls = type(tensor)
    if answers_by_code(cls):
        storage = storage_of(tensor)
        return storage is not None and device_of(storage).type == "meta"
    return bool(TENSOR_DICT["is_meta"].__get__(tensor)) or _is_simulated_class(cls)


def _has_simulated_base(cls: type) -> bool:
    return any(_TYPE_NAME(base) in {"FakeTensor", "FunctionalTensor"} for base in mro_of(cls))


_is_simulated_class: Final = ByClass(_has_simulated_base)


def _has_own_answers(cls: type) -> bool:
    name = "__torch_dispatch__"
    base = next((base for base in mro_of(cls) if name in type_dict(base)), torch.Tensor)
    if type_dict(base)[name] is type_dict(torch.Tensor)[name]:
        return False
    module = type_dict(base).get("__module__")
    return not (type(module) is str and module.partition(".")[0] == "torch")


answers_by_code: Final = ByClass(_has_own_answers)
"""Return True for a class of tensors with a `__torch_dispatch__` of the program or of a package.

If memwatch read the sizes, the layout or the device of such a tensor, torch might call that method. So memwatch reads
them from the storage, or leaves them out.
"""


def layout_of(tensor: torch.Tensor) -> torch.layout:
    """Return the layout of a tensor.

    For a class in `answers_by_code`, return `sparse_coo` for every sparse layout and `strided` for all others.
    """
    if answers_by_code(type(tensor)):
        return torch.sparse_coo if _IS_SPARSE(tensor) else torch.strided
    layout: torch.layout = _LAYOUT(tensor)
    return layout


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Return True for a tensor in the host's memory."""
    if answers_by_code(type(tensor)):
        return bool(device_of(untyped_storage_of(tensor)).type == "cpu")
    return bool(_IS_CPU(tensor))


def is_on(tensor: torch.Tensor, device: str) -> bool:
    """Return True for a tensor in the memory of a device, such as `cpu` or `cuda:0`."""
    if answers_by_code(type(tensor)):
        return str(device_of(untyped_storage_of(tensor))) == device
    return str(_DEVICE(tensor)) == device


def is_on_meta(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of the device meta, which has no memory."""
    if answers_by_code(type(tensor)):
        return bool(device_of(untyped_storage_of(tensor)).type == "meta")
    return bool(_IS_META(tensor))


def nbytes_of(tensor: torch.Tensor) -> Any:
    """Return the size of a tensor in bytes.

    For a class in `answers_by_code`, return the size of the storage.
    """
    if answers_by_code(type(tensor)):
        return storage_bytes_of(untyped_storage_of(tensor))
    return _NBYTES(tensor)


def shape_of(tensor: torch.Tensor) -> torch.Size:
    """Return the shape of a tensor.

    Raises:
        RuntimeError: the tensor has no shape, or its class is in `answers_by_code`.
    """
    if answers_by_code(type(tensor)):
        raise RuntimeError("its class would be asked")
    shape: torch.Size = _SHAPE(tensor)
    return shape


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; None for a sparse or opaque tensor and for a wrapper subclass.

    Call it under :func:`quiet`. Otherwise the `__torch_function__` of a subclass would run.
    """
    if is_composed(type(tensor)):
        return None  # the inner tensors have the storages
    try:
        storage: torch.UntypedStorage = untyped_storage_of(tensor)
    except _NO_STORAGE as error:
        pass_on(error)
        return None
    return storage


def _defines_parts(cls: type) -> bool:
    return any("__tensor_flatten__" in type_dict(base) for base in mro_of(cls))


is_composed: Final = ByClass(_defines_parts)
"""Return True if tensors of a class consist of inner tensors, which it names by ``__tensor_flatten__``."""


def storage_bytes(storage: torch.UntypedStorage) -> int:
    """Return the size of a storage in bytes. 0 if the storage raises an error."""
    try:
        return storage_bytes_of(storage)
    except _NO_STORAGE as error:
        pass_on(error)
        return 0


def quiet() -> AbstractContextManager[object]:
    """Return a context that switches off ``__torch_function__`` of subclasses and modes."""
    return disable_torch_function()


# DLPack capsules. The positions of their fields are part of the DLPack standard.
Capsule: Final[type] = type(vars(datetime)["datetime_CAPI"])
"""Python's class `PyCapsule`, which has no public name. Every capsule is of this class."""
_CAPSULES: Final[dict[bytes, int]] = {
    b"dltensor": 0,
    b"numpy_dltensor": 0,
    b"dltensor_versioned": 32,
    b"numpy_dltensor_versioned": 32,
}
"""Names of capsules that own memory. The value is the offset of the DLTensor in bytes: a version may come first."""
_BYTE_OFFSET: Final = 40
"""Position of the field `byte_offset` in a DLTensor, in bytes, from dlpack.h."""

_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def capsule_address(capsule: object) -> int | None:
    """Return the address of the first byte of a DLPack capsule's data; None if it has no data.

    Return None also for a capsule of another kind, and for a capsule that a library has consumed.
    """
    held = ctypes.py_object(capsule)
    for name, start in _CAPSULES.items():
        if ctypes.pythonapi.PyCapsule_IsValid(held, name):
            tensor = _pointer_of(held, name) + start
            address = ctypes.c_void_p.from_address(tensor).value
            offset: int = ctypes.c_uint64.from_address(tensor + _BYTE_OFFSET).value
            return None if address is None else address + offset
    return None
