"""What a program sees of the tensors that autograd saved: the same as without hooks.

Of what a hook gives back autograd makes a new tensor: it is no `nn.Parameter`, and has neither the class nor the
attributes of the saved one (Megatron's `main_grad`, for one). And it takes one pair of hooks for a saved tensor:
where ours are, the program's are refused. So for as long as packs of ours live, `ctx.saved_tensors` is a property
that gives what they keep, and hooks that the program registers go to them.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import SAVED_HOOKS_WORK, SavedTensor, raw_saved_tensors_of, saved_tensors_of
from memwatch._torch.overrides import disable_subclass_function
from memwatch._torch.tensors import GRAD_FN

Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]
"""The pair (pack, unpack) of hooks on saved tensors."""

_register: Final[Any] = getattr(SavedTensor, "register_hooks", None)
_data: Final = operator.attrgetter("data")
_Function: Final[Any] = BackwardCFunction  # the stub has no attribute that can be covered


class Disguise(NamedTuple):
    """What one packer can do with what its hooks packed.

    Attributes:
        original_of: return the tensor that was saved; None if there is none, or if another packed it.
        hook: have the program's pair (pack, unpack) take over; return False if it cannot.
    """

    original_of: Callable[[Any], Any]
    hook: Callable[[Any, Any, Any], bool]


class Keeper:
    """What every pack holds, so that torch is as it was when the last of them is gone."""

    __slots__ = ("__weakref__",)


_worn: list[Disguise] = []


def put_on(disguise: Disguise) -> Keeper:
    """Hide the hooks of a packer until the result, and all that share it, are gone."""
    if not _worn and SAVED_HOOKS_WORK:
        _Function.saved_tensors = property(saved_tensors)
        SavedTensor.register_hooks = register_hooks
    _worn.append(disguise)
    keeper = Keeper()
    weakref.finalize(keeper, _take_off, disguise).atexit = False
    return keeper


def _take_off(disguise: Disguise) -> None:
    _worn.remove(disguise)
    if not _worn and SAVED_HOOKS_WORK:
        del _Function.saved_tensors
        SavedTensor.register_hooks = _register


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """Return the tensors that a function saved; autograd's own attribute reads, checks and frees them."""
    try:
        raw = raw_saved_tensors_of(ctx)
        packed = list(map(_data, raw))  # first, for torch may drop them as it gives their values
    except (MemoryError, RuntimeError):  # RuntimeError: they are freed, and autograd has the words for it
        packed = []
    values = list(saved_tensors_of.__get__(ctx))
    try:
        with disable_subclass_function():
            for at, pack in enumerate(packed):
                for disguise in _worn:
                    original = disguise.original_of(pack)
                    if original is not None and GRAD_FN.__get__(original) is not ctx:
                        values[at] = original
    except MemoryError:  # what autograd gives is right, too
        return tuple(values)
    return tuple(values)


def register_hooks(saved: Any, pack_hook: Any, unpack_hook: Any) -> None:
    """Register hooks of the program on one saved tensor."""
    if callable(pack_hook) and callable(unpack_hook):
        packed = saved.data
        for disguise in _worn:
            if disguise.hook(packed, pack_hook, unpack_hook):
                return
    _register(saved, pack_hook, unpack_hook)


CALLED_BACK: Final = saved_tensors, register_hooks
"""Functions of ours that torch or the program calls while dynamo may be evaluating frames."""
