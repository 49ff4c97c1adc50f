"""Moves of buffers in a compiled graph: out of the device's memory into host memory, and back.

They are ops like any other: a graph calls them, autograd saves what they return, inductor leaves them as they are.
On an accelerator the bytes wait in pinned host memory; those of the CPU wait in a temporary file.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch.devices import adapter_of
from memwatch.encoding.host_copies import as_bytes, new_storage

if TYPE_CHECKING:
    from collections.abc import Hashable

    from memwatch.planner.schedule import StepKind


@dataclass(frozen=True)
class Move:
    """A step of a plan that moves a buffer.

    Attributes:
        kind: out, or back.
        what: name of the buffer; in the order of one graph, name of the node that holds it.
    """

    kind: StepKind
    what: Hashable


def _move_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape on a copy of the storage's bytes in host memory."""
    storage = tensor.untyped_storage()
    held = _host_bytes(storage.nbytes(), tensor.device.type)
    held.copy_(as_bytes(storage))
    return _as(tensor, held.untyped_storage())


def _move_back(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor that was moved out, on a new storage."""
    storage = new_storage(held.untyped_storage().nbytes(), device)
    as_bytes(storage).copy_(as_bytes(held.untyped_storage()))
    return _as(held, storage)


def _as(like: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.no_grad():
        empty: Any = torch.empty(0, dtype=like.dtype, device=storage.device)
        found: torch.Tensor = empty.set_(storage, like.storage_offset(), like.size(), like.stride())
        return found


def _host_bytes(nbytes: int, device_type: str) -> torch.Tensor:
    if device_type != "cpu" or not nbytes:
        return adapter_of(device_type).host_copy(nbytes)
    with tempfile.TemporaryFile(
        prefix="memwatch-moved-"
    ) as file:  # its bytes last as long as they are mapped
        return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="w+", shape=(nbytes,)))


def _fake_out(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _fake_back(held: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device=device)


_ops: Final = torch.library.Library("memwatch", "FRAGMENT")
_ops.define("move_out(Tensor tensor) -> Tensor")
_ops.define("move_back(Tensor held, Device device) -> Tensor")
_ops.impl("move_out", _move_out, "CompositeExplicitAutograd")
_ops.impl("move_back", _move_back, "CompositeExplicitAutograd")
torch.library.register_fake("memwatch::move_out", _fake_out, lib=_ops)
torch.library.register_fake("memwatch::move_back", _fake_back, lib=_ops)

MOVE_OUT: Final = torch.ops.memwatch.move_out.default
MOVE_BACK: Final = torch.ops.memwatch.move_back.default
