"""The tensor at the end of a retention path: its words, and whether it shows but a part of its storage."""

from __future__ import annotations

from typing import Any

from memwatch.heap.tensors import is_tensor, nbytes_of, quiet
from memwatch.heap.vertices import describe
from memwatch.signal_handlers import pass_on


def tensor_words(objects: list[Any]) -> str:
    """Return the last tensor of a path, described."""
    return describe(next((obj for obj in reversed(objects) if is_tensor(obj)), objects[-1]))


def is_view(objects: list[Any], storage_bytes: int) -> bool:
    """Return True if the tensor at the end of a path shows half of its storage at most."""
    tensor = next((obj for obj in reversed(objects) if is_tensor(obj)), None)
    if tensor is None:
        return False
    with quiet():
        try:
            return bool(2 * nbytes_of(tensor) <= storage_bytes)
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            # nested, sparse and opaque tensors
            pass_on(error)
            return False
