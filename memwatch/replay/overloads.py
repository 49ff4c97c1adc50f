"""The torch overload behind a recorded name such as `aten.mm.default`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from memwatch.replay.errors import UnsupportedOpError
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from memwatch.replay.program import Call


def overload_of(call: Call) -> Any:  # torch has no public type for an overload
    """Return the overload that a recorded call called.

    Raises:
        UnsupportedOpError: the op is not defined in this process.
    """
    found = overload_named(call.name)
    if found is None:
        raise UnsupportedOpError(
            f"{call.where} is not defined in this process; import the library that defines it"
        )
    return found


@functools.cache
def overload_named(name: str) -> Any:  # torch has no public type for an overload
    """Return the overload of a recorded name, None if it is not defined in this process."""
    space, opname, overload = name.rsplit(".", 2)
    try:
        return getattr(getattr(getattr(torch.ops, space), opname), overload)
    except (AttributeError, RuntimeError) as error:
        pass_on(error)
        return None
