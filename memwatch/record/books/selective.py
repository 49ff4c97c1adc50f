"""Selective checkpoints: the results that a policy has torch save, until the region that made them runs again.

torch wraps each of them, and drops the wrapper when the region that runs again takes the result out.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from memwatch._torch.checkpoint import SAVE_RESULT
from memwatch._torch.modes import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.record.harmless import Harmless
from memwatch.record.interception.tracing import is_tracing
from memwatch.record.roles import SAVED_BY_POLICY
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.storages import BY_OP
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches
    from memwatch.record.tables.storages import Storages


class SelectiveBook:
    """Note which storages a selective checkpoint saves, and until when.

    Args:
        storages: the storages that are alive.
        context: who runs, and the roles so far.
    """

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages, self._context = storages, context
        self._harmless = Harmless(context.could_not_record, "a selective checkpoint")
        self.functions = (self._saving, self._dropped)
        self._wrappers: dict[weakref.ref[Any], list[int]] = {}

    def open(self, patches: Patches) -> bool:
        """Begin to read; torch always has it."""
        if SAVE_RESULT is not None:
            patches.put(*SAVE_RESULT, self._saving)
        return True

    def _saving(self, wrap: Callable[..., None], wrapper: Any, value: Any) -> None:
        wrap(wrapper, value)
        with self._harmless:
            if isinstance(value, Tensor) and self._context.is_its_thread and not is_tracing():
                # the op still runs: torch 2.11 wraps its result before the recorder has seen it
                op = self._context.roles.op_counter[0] - 1
                with disable_torch_function():
                    numbers = [self._storages.number_of(part, op, BY_OP) for part in plain_parts(value)]
                for number in numbers:
                    if number != NONE:
                        self._context.roles.add(number, SAVED_BY_POLICY, "")
                self._wrappers[weakref.ref(wrapper, self._dropped)] = numbers

    @raises_later
    def _dropped(self, wrapper: weakref.ref[Any]) -> None:
        with self._harmless:
            for number in self._wrappers.pop(wrapper, ()):
                if number in self._storages.roles:  # else it died with its wrapper
                    self._context.role_ends.end(number, SAVED_BY_POLICY)
