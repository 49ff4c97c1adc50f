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
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import SAVED_HOOKS_WORK, SavedTensor, raw_saved_tensors_of, saved_tensors_of
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.modes import disable_torch_function
from memwatch.record.when_gone import when_gone
from memwatch.signal_handlers import pass_on

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

    __slots__ = ("__weakref__", "_cover")

    def __init__(self, cover: _Cover) -> None:
        self._cover = cover


class _Cover:
    """What every keeper holds: torch's own attributes are back when it is gone."""

    __slots__ = ("__weakref__",)


_worn: list[Disguise] = []
_covers: list[weakref.ref[_Cover]] = []


def put_on(disguise: Disguise) -> Keeper:
    """Hide the hooks of a packer until the result, and all that share it, are gone."""
    keeper = Keeper((_covers and _covers[0]()) or _put_on_cover())
    _worn.append(disguise)
    when_gone(keeper, partial(_worn.remove, disguise))
    return keeper


def _put_on_cover() -> _Cover:
    cover = _Cover()
    _covers[:] = [weakref.ref(cover)]
    if SAVED_HOOKS_WORK:
        _Function.saved_tensors = property(saved_tensors)
        SavedTensor.register_hooks = register_hooks
        own = partial(setattr, SavedTensor, "register_hooks", _register)
        when_gone(cover, partial(delattr, _Function, "saved_tensors"), own)
    return cover


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """Return the tensors that a function saved; autograd's own attribute reads, checks and frees them."""
    try:
        raw = raw_saved_tensors_of(ctx)
        packed = list(map(_data, raw))  # first, for torch may drop them as it gives their values
    except (MemoryError, RuntimeError) as error:
        # RuntimeError: they are freed, and autograd has the words for it
        pass_on(error)
        packed = []
    values = list(saved_tensors_of.__get__(ctx))
    try:
        with disable_torch_function():
            for at, pack in enumerate(packed):
                for disguise in _worn:
                    original = disguise.original_of(pack)
                    if original is not None and autograd_state(original, with_node=True).grad_fn is not ctx:
                        values[at] = original
    except MemoryError:  # what autograd gives is right, too
        return tuple(values)
    return tuple(values)


def register_hooks(saved: Any, *hooks: Any, **named: Any) -> None:
    """Register hooks of the program on one saved tensor; torch's own function words the errors for wrong arguments."""
    pair = (*hooks, *(named[name] for name in ("pack_hook", "unpack_hook") if name in named))
    if len(pair) == 2 and all(map(callable, pair)):
        packed = saved.data
        for disguise in _worn:
            if disguise.hook(packed, *pair):
                return
    _register(saved, *hooks, **named)


CALLED_BACK: Final = saved_tensors, register_hooks
"""Functions of ours that torch or the program calls while dynamo may be evaluating frames."""
