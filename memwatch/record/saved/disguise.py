"""What a program sees of the tensors that autograd saved: the same as without hooks.

Of what a hook gives back autograd makes a new tensor: it is no `nn.Parameter`, and has neither the class nor the
attributes of the saved one (Megatron's `main_grad`, for one). And it takes one pair of hooks for a saved tensor:
where ours are, the program's are refused. So for as long as packs of ours live, `ctx.saved_tensors` is a property
that gives what they keep, and hooks that the program registers go to them.
"""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from collections.abc import Callable

_SavedTensor: Final[Any] = torch._C._autograd.SavedTensor
_given: Final[Any] = torch._C._FunctionBase.saved_tensors
_register: Final[Any] = _SavedTensor.register_hooks
_grad_fn: Final[Any] = torch._C.TensorBase.grad_fn
_data: Final = operator.attrgetter("data")


class Packs(NamedTuple):
    """What one recorder can do with what its hooks packed.

    Attributes:
        original_of: give the tensor that was saved; None if there is none, or if another packed it.
        hook: have the program's pair (pack, unpack) take over; False if it cannot.
    """

    original_of: Callable[[Any], Any]
    hook: Callable[[Any, Any, Any], bool]


class Keeper:
    """What every pack holds, so that torch is as it was with the last of them."""

    __slots__ = ("__weakref__",)


_packs: list[Packs] = []


def put_on(packs: Packs) -> Keeper:
    """Hide our hooks until the result, and all that share it, are gone."""
    if not _packs:
        BackwardCFunction.saved_tensors = property(saved_tensors)  # type: ignore[assignment]  # until `_take_off`
        _SavedTensor.register_hooks = register_hooks
    _packs.append(packs)
    keeper = Keeper()
    weakref.finalize(keeper, _take_off, packs).atexit = False
    return keeper


def _take_off(packs: Packs) -> None:
    _packs.remove(packs)
    if not _packs:
        del BackwardCFunction.saved_tensors
        _SavedTensor.register_hooks = _register


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
            for packs in _packs:
                original = packs.original_of(pack)
                if original is not None and _grad_fn.__get__(original) is not ctx:
                    values[at] = original
    return tuple(values)


def register_hooks(saved: Any, pack_hook: Any, unpack_hook: Any) -> None:
    """Register hooks of the program on one saved tensor."""
    if callable(pack_hook) and callable(unpack_hook):
        packed = saved.data
        for packs in _packs:
            if packs.hook(packed, pack_hook, unpack_hook):
                return
    _register(saved, pack_hook, unpack_hook)


CALLED_BACK: Final = saved_tensors, register_hooks
