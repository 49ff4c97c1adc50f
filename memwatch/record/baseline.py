"""Record the tensors, modules and optimizers that exist when the block begins, in one pass over gc's objects."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from memwatch._torch.modes import disable_torch_dispatch, disable_torch_function
from memwatch._torch.modules import PARAMETERS
from memwatch.capture.schema import NONE
from memwatch.heap.class_checks import derives
from memwatch.heap.classes import Classes
from memwatch.heap.module_tables import is_whole, module_dict
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.storages import BASELINE, Storages
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.record.context import Context


def scan(storages: Storages, context: Context) -> None:
    """Number every storage that Python can see. Name every root module and every state of an optimizer."""
    tensors, modules, optimizers = _instances(gc.get_objects(), (Tensor, nn.Module, Optimizer))
    # reading the device of a fake tensor must not call the program's modes either
    with disable_torch_function(), disable_torch_dispatch():
        for tensor in tensors:
            _number(storages, tensor)
    context.owners.learn_modules(
        (module for module in modules if PARAMETERS in module_dict(module)), sys._getframe()
    )
    for optimizer in optimizers:
        if is_whole(optimizer):
            with suppress(AttributeError, KeyError, TypeError):  # a half-made optimizer
                context.owners.learn_parameters(optimizer)
            context.owners.learn_state(optimizer)
    context.look_at_gradients()


def _instances(objects: Sequence[Any], bases: Sequence[type]) -> list[list[Any]]:
    """Return the objects of each base class. An object of several bases appears under the first one only."""
    classes = Classes(objects)
    of_base: dict[type, list[int]] = {base: [] for base in bases}
    for number, cls in classes.by_id.items():
        base = next((base for base in bases if derives(cls, base)), None)
        if base is not None:
            of_base[base].append(number)
    return [[objects[place] for place in classes.places(ids).tolist()] for ids in of_base.values()]


def _number(storages: Storages, tensor: Tensor) -> None:
    try:
        for part in plain_parts(tensor):
            storages.number_of(part, NONE, BASELINE)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        pass_on(error)
        return  # a half-made or foreign wrapper: it gets its number when an op uses it
