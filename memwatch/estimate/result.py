"""What an estimate found: the bytes that are counted, and those that are modelled, each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memwatch.device_names import is_host
from memwatch.devices import adapter_of
from memwatch.devices.cuda_allocator import ANY_DEVICE_BYTES, Model, Trace
from memwatch.estimate.workspace import Workspace, workspace_at_peak

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray
    from memwatch.estimate.calls import Calls
    from memwatch.estimate.job import Job
    from memwatch.reading import Reading


@dataclass(frozen=True)
class Estimate:
    """The peak of one rank.

    Attributes:
        reading: what was recorded, with the same tables as a profile has.
        job: the rank, and how many there are.
        steps: steps of the optimizer that the program made.
        calls: the ops with the sizes of their arguments.
        reads: lines of the program that read a value and got zero.
        remarks: sentences about what the program did differently.
    """

    reading: Reading
    job: Job
    steps: int
    calls: Calls
    reads: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """The most bytes of tensors that are alive at once on the device of the reading: counted, not modelled."""
        return self.reading.peak_bytes

    @cached_property
    def workspace(self) -> Workspace | None:
        """What kernels take at the peak beside tensors: the ops near it run, in a process of their own.

        None for a device on which none runs here.
        """
        return workspace_at_peak(self.calls, self.reading)

    @property
    def block_bytes(self) -> int:
        """What the blocks of the device's allocators are multiples of, bytes."""
        return adapter_of(self.reading.device).alignment_bytes

    @property
    def rounding_bytes(self) -> int:
        """What the peak grows by when every storage takes whole blocks: modelled."""
        return self._in_blocks[0] - self.tensor_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """What a caching allocator takes from the device for these blocks: modelled; None where there is none."""
        return self._in_blocks[1]

    @cached_property
    def _in_blocks(self) -> tuple[int, int | None]:
        """Return the peak of the blocks, and what is reserved for them."""
        storages = self.reading.part(
            "storages", ["counted", "device", "nbytes", "birth_event", "death_event"]
        )
        storages = storages[storages["counted"] & (storages["device"] == self.reading.device)]
        columns = (storages[name].to_numpy() for name in ("nbytes", "birth_event", "death_event"))
        sizes, birth, death = columns
        if is_host(self.reading.device):
            blocks = -(-sizes // self.block_bytes) * self.block_bytes
            changes: IntArray = np.zeros(len(self.reading.timeline) + 1, dtype=np.int64)
            np.add.at(changes, np.maximum(birth, 0), blocks)
            np.subtract.at(changes, death[death >= 0], blocks[death >= 0])
            return int(np.cumsum(changes).max()), None
        outcome = Model().run(Trace.of_lives(sizes, birth, death), "", ANY_DEVICE_BYTES)
        return outcome.most_allocated_bytes, outcome.most_reserved_bytes
