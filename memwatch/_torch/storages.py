"""Storages: the address that names a block of memory while it lives.

| torch | here |
| --- | --- |
| torch._C._storage_address | address_of_storage_of (of a tensor) |
| storage._cdata | address_of (of a storage) |
| torch._C._data_address | data_address_of |
| torch._C.StorageBase.nbytes | storage_bytes_of |
| torch._C.StorageBase.device | device_of |
| torch._C._storage_Use_Count | owners_of |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

_identity: Final = Part(
    "storages are identified by their Python objects, which may raise a peak inside backward"
)
address_of: Final[Callable[[Any], int]] = _identity.reader("torch.UntypedStorage._cdata", id)
"""Return the number that names a storage while it lives: the address of its C++ object."""


def _through_its_object(tensor: Any) -> int:
    return address_of(tensor.untyped_storage())


_of_tensor: Final[Callable[[Any], int]] = _identity.take("torch._C._storage_address", _through_its_object)
address_of_storage_of: Final[Callable[[Any], int]] = _of_tensor if _identity.complete else _through_its_object
"""Return the same number for the storage of a tensor; makes no Python object of it and asks no subclass."""
IDENTITY_IS_ADDRESS: Final = _identity.complete
"""Whether these numbers are the addresses that C++ sees too."""


def _data_pointer(tensor: Any) -> int:
    return int(tensor.data_ptr())


data_address_of: Final[Callable[[Any], int]] = Part(
    "reading the address of a lazily cloned tensor copies it"
).take("torch._C._data_address", _data_pointer)
"""Return the address of a tensor's first byte; a lazy clone stays one."""


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


def owners_of(storage: Any) -> int | None:
    """Return how many owners a storage has in C++, its Python object among them; None if nobody can tell."""
    return None if _use_count is None else _use_count(address_of(storage))
