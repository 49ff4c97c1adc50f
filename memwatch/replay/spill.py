"""The place that offloaded buffers move to.

Buffers of an accelerator go to pinned host memory, buffers of the CPU to a memory-mapped file.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import TYPE_CHECKING

import numpy as np
import torch

from memwatch.devices import adapter_of
from memwatch.encoding.host_memory import HostBytes, as_bytes, copy_in, new_storage

if TYPE_CHECKING:
    from types import TracebackType


class Spill:
    """A context manager that holds the bytes of offloaded buffers, and drops them at its end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="memwatch-spill-")
        self._files: dict[int, HostBytes] = {}
        self._pinned: dict[int, torch.Tensor] = {}
        self.moved_bytes = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._pinned.clear()
        self._folder.cleanup()

    def out(self, buffer: int, storage: torch.UntypedStorage) -> None:
        """Copy the bytes of a buffer out; they replace an earlier copy of the same buffer."""
        self.moved_bytes += storage.nbytes()
        if storage.device.type != "cpu":
            held = adapter_of(storage.device.type).host_copy(storage.nbytes())
            self._pinned[buffer] = held.copy_(as_bytes(storage))
            return
        if storage.nbytes():
            path = pathlib.Path(self._folder.name) / str(buffer)
            mapped = np.memmap(path, dtype=np.uint8, mode="w+", shape=(storage.nbytes(),))
            torch.from_numpy(mapped).copy_(as_bytes(storage))
        self._files[buffer] = mapped if storage.nbytes() else np.empty(0, dtype=np.uint8)

    def back(self, buffer: int, device: str) -> torch.UntypedStorage:
        """Return a new storage with the bytes of a buffer."""
        if buffer in self._pinned:
            held = self._pinned[buffer]
            storage = new_storage(held.numel(), device)
            as_bytes(storage).copy_(held)
        else:
            storage = new_storage(len(self._files[buffer]), device)
            copy_in(self._files[buffer], storage)
        self.moved_bytes += storage.nbytes()
        return storage
