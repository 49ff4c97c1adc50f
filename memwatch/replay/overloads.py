"""Find the overload that a recorded name means."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from memwatch.replay.errors import UnsupportedOpError

if TYPE_CHECKING:
    from memwatch.replay.program import Call


def overload_of(call: Call) -> Any:  # torch has no public type for an overload
    """Return the overload of a call.

    Raises:
        UnsupportedOpError: it is not defined in this process.
    """
    found = _find(call.name)
    if found is None:
        raise UnsupportedOpError(f"{call.where} is not defined here; import the library that defines it")
    return found


@functools.cache
def _find(name: str) -> Any:
    space, opname, overload = name.rsplit(".", 2)
    try:
        return getattr(getattr(getattr(torch.ops, space), opname), overload)
    except (AttributeError, RuntimeError):
        return None
