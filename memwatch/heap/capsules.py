"""DLPack capsules: the address of the memory that one owns, read from the fields that the standard lays down."""

from __future__ import annotations

import ctypes
import datetime
from typing import Final

Capsule: Final[type] = type(vars(datetime)["datetime_CAPI"])
_NAMES: Final[dict[bytes, int]] = {
    b"dltensor": 0,
    b"numpy_dltensor": 0,
    b"dltensor_versioned": 32,
    b"numpy_dltensor_versioned": 32,
}
"""Names of capsules that own memory, each with where its tensor begins: a version and other fields come first."""
_BYTE_OFFSET: Final = 40
"""Position of the field `byte_offset` in a DLTensor, in bytes, from dlpack.h."""

_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def capsule_address(capsule: object) -> int | None:
    """Return the address of the first byte of a DLPack capsule, or None for any other capsule or an empty one."""
    held = ctypes.py_object(capsule)
    for name, start in _NAMES.items():
        if ctypes.pythonapi.PyCapsule_IsValid(held, name):
            tensor = _pointer_of(held, name) + start
            address = ctypes.c_void_p.from_address(tensor).value
            offset: int = ctypes.c_uint64.from_address(tensor + _BYTE_OFFSET).value
            return None if address is None else address + offset
    return None
