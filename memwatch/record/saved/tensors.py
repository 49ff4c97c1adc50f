"""What is written down of a tensor that autograd saves: its storage, its shape, its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memwatch.capture.schema import NONE
from memwatch.record.tables.parts import plain_parts, tensor_bytes
from memwatch.record.tables.storages import BASELINE

if TYPE_CHECKING:
    from torch import Tensor

    from memwatch.record.tables.storages import Storages


def saved_storage(storages: Storages, tensor: Tensor) -> tuple[int, int, int]:
    """Return the number of a saved tensor's storage, -1 for none, the string id of its shape, and its bytes.

    A wrapper, as a DTensor, has no bytes of its own: its first part has them.
    """
    part = next(plain_parts(tensor), tensor) if tensor.layout is torch.strided else tensor
    storage = storages.number_of(part, NONE, BASELINE) if tensor.layout is torch.strided else NONE
    return storage, storages.shape_id(part), tensor_bytes(part)
