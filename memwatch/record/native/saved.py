"""The native packs as the session knows them: pushed and taken off as those of Python, packed in C++."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from memwatch.record.python.saved import MODIFYING, SavedTensorRecorder, inplace_error, look
from memwatch.record.saved import disguise

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.native.storages import NativeStorages


class NativeSavedTensorRecorder(SavedTensorRecorder):
    """Pack saved tensors in C++; look into tensors of parts and word errors here."""

    def __init__(
        self, library: Any, storages: NativeStorages, context: Context, ops_started: list[int]
    ) -> None:
        super().__init__(storages, context, ops_started)
        self.packs, self.unpacks = library.Rows(), library.Rows()
        self._native = library.SavedTensors(
            self.packs,
            self.unpacks,
            functools.partial(look, storages),
            inplace_error,
            storages.native,
            context,
            ops_started,
        )
        self._hooks = self._native.hooks()
        self.callbacks = disguise.CALLED_BACK  # dynamo has no frames of the others to look at
        hook = functools.partial(library.hook, MODIFYING)
        self._ours = disguise.Packs(library.original_of, hook)

    def set_outer(self, hooks: tuple[Callable[..., Any], Callable[..., Any]] | None) -> None:
        """Have the hooks that the program pushed before do the packing."""
        super().set_outer(hooks)
        self._native.set_outer(hooks)

    def start(self) -> None:
        """Push the hooks, above those that the program pushed before."""
        super().start()
        self._native.set_keeper(self._keeper)

    def close(self) -> None:
        """Append no more rows; C++ lets go of the Python objects that it holds."""
        super().close()
        self._native.close()

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Give the numbers of the storages that autograd keeps now, by the sequence number of the node."""
        found: dict[int, list[int]] = self._native.living_by_sequence()
        return found
