"""What was live when the block was entered: tensors, modules and optimizers, in one pass over the gc's objects."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.modules import PARAMETERS
from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.storages import BASELINE, Storages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.record.context import Context


def scan(storages: Storages, context: Context) -> None:
    """Number every storage that Python can see, and name every root module and what optimizers keep."""
    base_of: dict[type, type | None] = {}
    found: dict[type, list[Any]] = {Tensor: [], nn.Module: [], Optimizer: []}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in base_of:
            base_of[kind] = _base_of(kind, found)
        base = base_of[kind]
        if base is not None:
            found[base].append(thing)
    # nor may the program's modes be asked for the device of a fake tensor
    with disable_torch_function(), disable_torch_dispatch():
        for tensor in found[Tensor]:
            _number(storages, tensor)
    context.owners.learn_modules(
        (module for module in found[nn.Module] if PARAMETERS in module.__dict__), sys._getframe()
    )
    for optimizer in found[Optimizer]:
        if isinstance(optimizer.__dict__.get("state"), dict) and "param_groups" in optimizer.__dict__:
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # a half-made optimizer
                context.owners.learn_parameters(optimizer)
            context.owners.learn_state(optimizer)
    context.backward_ended()


def _base_of(kind: type, bases: Iterable[type]) -> type | None:
    """Return the first of the bases that a type has, or None."""
    # issubclass would run a user's __subclasscheck__, and `in` a metaclass's __eq__
    above = set(map(id, type.__dict__["__mro__"].__get__(kind)))
    for base in bases:
        if id(base) in above:
            return base
    return None


def _number(storages: Storages, tensor: Tensor) -> None:
    try:
        for part in plain_parts(tensor):
            storages.number_of(part, NONE, BASELINE)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError):
        return  # a half-made or foreign wrapper: it is numbered when an op touches it
