"""`ctx.saved_tensors` of a function written in Python: the very tensors that were saved, as without hooks.

Of what a hook gives back autograd makes a new tensor: it is no `nn.Parameter`, and has neither the class nor the
attributes of the saved one (Megatron's `main_grad`, for one). So the attribute is a property for as long as packs
of ours live, and gives what they keep.
"""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from collections.abc import Callable

_given: Final[Any] = torch._C._FunctionBase.saved_tensors
_grad_fn: Final[Any] = torch._C.TensorBase.grad_fn
_data: Final = operator.attrgetter("data")
_readers: list[Callable[[Any], Any]] = []


class Keeper:
    """What every pack holds, so that the property goes with the last of them."""

    __slots__ = ("__weakref__",)


def put_on(original_of: Callable[[Any], Any]) -> Keeper:
    """Have `ctx.saved_tensors` give originals, until the result and all that share it are gone.

    Args:
        original_of: gives the tensor that was saved for what a hook packed; None if there is none, or if
            another packed it.
    """
    if not _readers:
        BackwardCFunction.saved_tensors = property(saved_tensors)  # type: ignore[assignment]  # until `_take_off`
    _readers.append(original_of)
    keeper = Keeper()
    weakref.finalize(keeper, _take_off, original_of).atexit = False
    return keeper


def _take_off(original_of: Callable[[Any], Any]) -> None:
    _readers.remove(original_of)
    if not _readers:
        del BackwardCFunction.saved_tensors


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """Give the tensors that a function saved; autograd's own attribute reads, checks and frees them."""
    try:
        raw = ctx._raw_saved_tensors
    except RuntimeError:  # they are freed: autograd has the words for it
        raw = ()
    packed = list(map(_data, raw))  # first, for torch may drop them as it gives their values
    values = list(_given.__get__(ctx))
    with torch._C.DisableTorchFunctionSubclass():
        for at, pack in enumerate(packed):
            for original_of in _readers:
                original = original_of(pack)
                if original is not None and _grad_fn.__get__(original) is not ctx:
                    values[at] = original
    return tuple(values)
