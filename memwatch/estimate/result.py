"""What an estimate found: the bytes that are counted, and those that are modelled, each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.devices import adapter_of

if TYPE_CHECKING:
    from memwatch.capture.packed import IntArray
    from memwatch.estimate.job import Job
    from memwatch.reading import Reading


@dataclass(frozen=True)
class Estimate:
    """The peak of one rank.

    Attributes:
        reading: what was recorded, with the same tables as a profile has.
        job: the rank, and how many there are.
        steps: steps of the optimizer that the program made.
        reads: lines of the program that read a value and got zero.
        remarks: sentences about what the program did differently.
    """

    reading: Reading
    job: Job
    steps: int
    reads: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """The most bytes of tensors that are alive at once on the device of the reading: counted, not modelled."""
        return self.reading.peak_bytes

    @property
    def block_bytes(self) -> int:
        """What the blocks of the device's allocators are multiples of, bytes."""
        return adapter_of(self.reading.device).alignment_bytes

    @property
    def rounding_bytes(self) -> int:
        """What the peak grows by when every storage takes whole blocks: modelled."""
        return self._peak_in_blocks(self.block_bytes) - self._peak_in_blocks(1)

    def _peak_in_blocks(self, block_bytes: int) -> int:
        """Return the peak if sizes were rounded up to multiples of a number of bytes."""
        storages = self.reading.storages
        storages = storages[storages["counted"] & (storages["device"] == self.reading.device)]
        sizes = -(-storages["nbytes"].to_numpy() // block_bytes) * block_bytes
        birth, death = storages["birth_event"].to_numpy(), storages["death_event"].to_numpy()
        changes: IntArray = np.zeros(len(self.reading.timeline) + 1, dtype=np.int64)
        np.add.at(changes, np.maximum(birth, 0), sizes)
        np.subtract.at(changes, death[death >= 0], sizes[death >= 0])
        return int(np.cumsum(changes).max())
