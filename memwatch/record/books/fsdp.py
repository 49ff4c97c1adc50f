"""Read the buffers of FSDP: the whole parameters, their gradients, and the all-gather and reduce-scatter buffers.

A parameter group of FSDP2 keeps the tensors of the whole parameters for good, and frees their bytes when it reshards.
The block sees this as a resize. Other tensors that are made while the group gathers or reduces, such as copies in
another dtype, belong to communication. FSDP1 gathers into flat parameters, which it resizes.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from memwatch._torch.distributed import (
    REDUCE,
    UNSHARD,
    WAIT,
    all_gather_output,
    flat_parameter,
    gathered,
    group_name,
    loaded_flat_handle,
    loaded_parameter_group,
    reduction_buffers,
    sharded,
    unsharded,
    unsharded_gradients,
)
from memwatch.capture.schema import GRADIENT_PREFIX
from memwatch.record.harmless import Harmless
from memwatch.record.roles import COMMUNICATION, UNSHARDED, UNSHARDED_GRADIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches
    from memwatch.record.tables.storages import Storages


class ParameterGroupBook:
    """Note what the parameter groups of FSDP2 keep, at the calls that change it."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages, self._context = storages, context
        self._harmless = Harmless(context.could_not_record, "fully_shard")
        self.functions = (self._unsharding, self._waiting, self._reducing)
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self, patches: Patches) -> bool:
        """Begin to read if FSDP2 is imported by now; return whether it is."""
        group = loaded_parameter_group()
        if group is not None:
            patches.put(group, UNSHARD, self._unsharding)
            patches.put(group, WAIT, self._waiting)
            patches.put(group, REDUCE, self._reducing)
        return group is not None

    def _unsharding(self, unshard: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._storages.count
        result = unshard(group, *args, **kwargs)
        with self._harmless:
            buffer = all_gather_output(group)
            if buffer is not None:
                self._context.roles.note(buffer, COMMUNICATION, f"all-gather buffer of {_owner(group)}")
            self._note_rest(first, f"all-gather input of {_owner(group)}")
        return result

    def _waiting(self, wait: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        result = wait(group, *args, **kwargs)
        with self._harmless:
            for name, tensor in unsharded(group):
                self._context.roles.note(tensor, UNSHARDED, name)
            if group not in self._groups:
                self._groups.add(group)
                for name, tensor in sharded(group):
                    self._context.owners.own(tensor, name)
        return result

    def _reducing(self, reduce: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        with self._harmless:
            for name, tensor in unsharded_gradients(group):
                self._context.roles.note(tensor, UNSHARDED_GRADIENT, f"{GRADIENT_PREFIX}{name}")
        first = self._storages.count
        result = reduce(group, *args, **kwargs)
        with self._harmless:
            for what, tensor in reduction_buffers(group):
                self._context.roles.note(tensor, COMMUNICATION, f"{what} of {_owner(group)}")
            self._note_rest(first, f"reduced gradients of {_owner(group)}")
        return result

    def _note_rest(self, first: int, name: str) -> None:
        """Note that what was born since `first`, and has no role, was made to communicate."""
        if not self._context.is_its_thread:
            return
        living = dict(self._storages.born_since(first))
        for number in range(first, self._storages.count):
            if not self._storages.roles.get(number):
                self._context.roles.add(number, COMMUNICATION, name, lives=number in living)


def _owner(group: Any) -> str:
    name = group_name(group)
    return f"`{name}`" if name else "the root module"


class FlatParameterBook:
    """Note which storages hold a gathered flat parameter."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._harmless = Harmless(context.could_not_record, "FullyShardedDataParallel")
        self.functions = (self._unsharding,)

    def open(self, patches: Patches) -> bool:
        """Begin to read if FullyShardedDataParallel is imported by now; return whether it is."""
        handle = loaded_flat_handle()
        if handle is not None:
            patches.put(handle, UNSHARD, self._unsharding)
        return handle is not None

    def _unsharding(self, unshard: Callable[..., Any], handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = unshard(handle, *args, **kwargs)
        with self._harmless:
            flat, names = flat_parameter(handle)
            name, module = self._context.owners.name_of(flat)
            for tensor in gathered(flat):
                self._context.roles.note(tensor, UNSHARDED, name or names, module)
        return result
