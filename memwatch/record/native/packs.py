"""The packs of saved tensors in C++, with what they leave to Python: tensors of parts, and the words for errors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from memwatch.errors import MemwatchError
from memwatch.heap.capsules import Capsule
from memwatch.heap.packs import look_through
from memwatch.record.saved.disguise import Disguise
from memwatch.record.saved.errors import DETACHED, MODIFYING, inplace_error
from memwatch.record.saved.tensors import saved_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from memwatch.record.backend import CallContext
    from memwatch.record.native.extension import Extension
    from memwatch.record.saved.disguise import Hooks
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.storages import Storages


class NativePacker:
    """Append the rows of `packs` and `unpacks` in C++."""

    def __init__(
        self, extension: Extension, storages: Storages, context: CallContext, op_counter: OpCounter
    ) -> None:
        self._native = extension.SavedTensors(
            callbacks=_Callbacks(storages, context.could_not_record),
            storages=storages.ledger,
            context=context,
            op_counter=op_counter,
        )
        self.packs, self.unpacks = self._native.packs, self._native.unpacks
        self.hooks: Hooks = self._native.hooks()
        self.python_functions: tuple[Callable[..., Any], ...] = ()  # the hooks are functions of C's
        self.disguise = Disguise(extension.original_of, functools.partial(extension.hook, MODIFYING))
        look_through(Capsule, extension.content_of)
        self.set_outer = self._native.set_outer
        self.set_keeper = self._native.set_keeper
        self.living_by_sequence = self._native.living_by_sequence
        self.close = self._native.close


class _Callbacks:
    """What C++ asks; see `memwatch.record.native.callbacks.PackCallbacks`."""

    passed_on: type[Exception] = MemwatchError

    def __init__(self, storages: Storages, could_not_record: Callable[[str, Exception], None]) -> None:
        self._storages, self.could_not_record = storages, could_not_record

    def describe(self, tensor: Tensor) -> tuple[int, int, int]:
        return saved_storage(self._storages, tensor)

    # it outlives the block, as packs in the program's graph do
    inplace_error = staticmethod(inplace_error)
    detached_error = DETACHED
