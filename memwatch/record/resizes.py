"""Hear of storages that the program resizes by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.tables.storages import Storages


class PatchedResize:
    """Have the table of storages hear of every `resize_`."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._patches = Patches()

    def start(self) -> None:
        """Begin to hear."""
        self._patches.put(torch.UntypedStorage, "resize_", self._resize)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()

    def _resize(self, resize: Callable[..., Any], storage: torch.UntypedStorage, nbytes: int) -> Any:
        result = resize(storage, nbytes)
        self._storages.resized(storage)
        return result
