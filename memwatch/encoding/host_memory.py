"""Bytes of a storage, out to host memory that torch's allocators do not count, and back."""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

HostBytes: TypeAlias = NDArray[np.uint8]


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor of bytes over a storage, without a copy."""
    with torch.no_grad():
        empty: Any = torch.empty(0, dtype=torch.uint8, device=storage.device)
        tensor: torch.Tensor = empty.set_(storage, 0, (storage.nbytes(),), (1,))
        return tensor


def copy_out(storage: torch.UntypedStorage) -> HostBytes:
    """Copy the bytes of a storage to host memory that numpy owns."""
    held = np.empty(storage.nbytes(), dtype=np.uint8)
    if len(held):
        torch.from_numpy(held).copy_(as_bytes(storage))
    return held


def copy_in(held: HostBytes, storage: torch.UntypedStorage) -> None:
    """Copy bytes from host memory into a storage of the same size."""
    if len(held):
        as_bytes(storage).copy_(torch.from_numpy(held))


def new_storage(nbytes: int, device: torch.device | str) -> torch.UntypedStorage:
    """Allocate a storage on a device; its bytes are not set."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def checksum(storage: torch.UntypedStorage) -> int:
    """Return a checksum (CRC-32) of the bytes of a storage."""
    if not storage.nbytes():
        return 0
    held = as_bytes(storage)
    return crc32(held.cpu().numpy())


def crc32(held: HostBytes) -> int:
    """Return the CRC-32 of bytes in host memory."""
    return zlib.crc32(held.data)
