"""What is written down of a tensor that autograd saves: its storage, its shape, its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memwatch._torch.modes import is_wrapper_subclass
from memwatch.capture.schema import NONE
from memwatch.heap.tensors import layout_of
from memwatch.record.tables.parts import plain_parts, tensor_bytes
from memwatch.record.tables.storages import BASELINE

if TYPE_CHECKING:
    from torch import Tensor

    from memwatch.record.tables.storages import Storages


def saved_storage(storages: Storages, tensor: Tensor) -> tuple[int, int, int]:
    """Return the number of a saved tensor's storage, -1 for none, the string id of its shape, and its bytes.

    A wrapper, as a DTensor or a jagged tensor, has no bytes of its own: its first part has them.
    """
    has_parts = layout_of(tensor) is torch.strided or is_wrapper_subclass(tensor)
    part = next(plain_parts(tensor), tensor) if has_parts else tensor
    storage = storages.number_of(part, NONE, BASELINE) if layout_of(part) is torch.strided else NONE
    return storage, storages.shape_id(part), tensor_bytes(part)
