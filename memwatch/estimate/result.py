"""Define the result of an estimate, with separate figures for counted bytes and modelled bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memwatch.cards import Room
from memwatch.device_names import is_host
from memwatch.devices import adapter_of
from memwatch.devices.cuda_allocator import ANY_DEVICE_BYTES, SettingsError, Trace, choose_allocator
from memwatch.errors import MemwatchError
from memwatch.estimate.workspace import Workspace, workspace_at_peak

if TYPE_CHECKING:
    from memwatch.capture.columns import IntArray
    from memwatch.devices.cuda_allocator import Allocator, Outcome
    from memwatch.estimate.calls import Calls
    from memwatch.estimate.job import Job
    from memwatch.reading import Reading


@dataclass(frozen=True)
class Estimate:
    """The peak of one rank.

    Attributes:
        reading: the recording, with the same tables as a profile.
        job: the rank, and the number of ranks.
        steps: steps of the optimizer that the program made.
        calls: the ops with the sizes of their arguments.
        reads: lines of the program that read a value and got zero.
        remarks: sentences about actions of the program that were replaced.
        branches: the lines in `reads` that asked for yes or no, not for a number. The answer was no.
    """

    reading: Reading
    job: Job
    steps: int
    calls: Calls
    reads: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """The most bytes of tensors that are alive at once on the device of the reading: counted, not modelled."""
        return self.reading.peak_bytes

    @cached_property
    def workspace(self) -> Workspace | None:
        """The memory of kernels at the peak, in addition to tensors; None for a device that this machine does not have.

        To measure it, the ops near the peak run in a process of their own.
        """
        return workspace_at_peak(self.calls, self.reading)

    @property
    def block_bytes(self) -> int:
        """The unit of the blocks of the device's allocators, bytes."""
        return adapter_of(self.reading.device).alignment_bytes

    @property
    def rounding_bytes(self) -> int:
        """The bytes by which the peak grows if every storage takes whole blocks: modelled."""
        return self._in_blocks[0] - self.tensor_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """The bytes that torch's caching allocator reserves for these blocks; None on a device without one."""
        return self._in_blocks[1]

    @cached_property
    def allocator(self) -> str:
        """The source of the reserved bytes: torch's own allocator, or memwatch's model."""
        return self._allocator[0].name

    @property
    def is_model(self) -> bool:
        """Whether the reserved bytes are those of memwatch's model, because torch is not a CUDA build."""
        return bool(self._allocator[1])

    @property
    def settings(self) -> str:
        """The settings of the allocator: those of the environment."""
        return os.environ.get("PYTORCH_CUDA_ALLOC_CONF", os.environ.get("PYTORCH_ALLOC_CONF", ""))

    def on_device(self, device: int | str) -> Outcome:
        """Run the allocator for a device, on one stream.

        Args:
            device: a card such as `"H100"`, whose CUDA context and libraries are assumed to take some of its memory; or
                the memory that torch can use, such as `"80 GiB"`.

        Raises:
            MemwatchError: the program has no tensors on an accelerator, or the device or the settings are unknown.
        """
        if is_host(self.reading.device):
            raise MemwatchError(
                "the program put its tensors on the CPU, so memwatch cannot say whether they fit a GPU; estimate it "
                'with --device cuda, and let the program use "cuda"'
            )
        return self._allocator[0].run(self._trace, self.settings, Room.of(device).tensor_bytes)

    def fits(self, device: int | str) -> bool:
        """Return whether the tensors fit on a card such as `"H100"`, or in so much memory; see `on_device`."""
        return self.on_device(device).fits

    @cached_property
    def _allocator(self) -> tuple[Allocator, str]:
        return choose_allocator()

    @cached_property
    def _trace(self) -> Trace:
        return Trace.of_lives(*self._lives)

    @property
    def _lives(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return sizes, births and deaths of the storages on the device."""
        storages = self.reading.part(
            "storages", ["counted", "device", "nbytes", "birth_event", "death_event"]
        )
        storages = storages[storages["counted"] & (storages["device"] == self.reading.device)]
        sizes, births, deaths = (
            storages[name].to_numpy() for name in ("nbytes", "birth_event", "death_event")
        )
        return sizes, births, deaths

    @cached_property
    def _in_blocks(self) -> tuple[int, int | None]:
        """Return the peak of the blocks, and the bytes reserved for them."""
        if is_host(self.reading.device):
            sizes, birth, death = self._lives
            blocks = -(-sizes // self.block_bytes) * self.block_bytes
            changes: IntArray = np.zeros(len(self.reading.timeline) + 1, dtype=np.int64)
            np.add.at(changes, np.maximum(birth, 0), blocks)
            np.subtract.at(changes, death[death >= 0], blocks[death >= 0])
            return int(np.cumsum(changes).max()), None
        try:
            outcome = self._allocator[0].run(self._trace, self.settings, ANY_DEVICE_BYTES)
        except SettingsError:  # `on_device` reports it; for this figure the default settings are good enough
            outcome = self._allocator[0].run(self._trace, "", ANY_DEVICE_BYTES)
        return outcome.most_allocated_bytes, outcome.most_reserved_bytes
