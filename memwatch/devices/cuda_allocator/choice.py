"""Which allocator runs a trace: torch's own, or the model where that is not there."""

from __future__ import annotations

from typing import TypeAlias

from memwatch.devices.cuda_allocator.model import Model
from memwatch.devices.cuda_allocator.torchs_own import TorchAllocator, find_torchs_own
from memwatch.errors import MemwatchError

Allocator: TypeAlias = "TorchAllocator | Model"


def choose_allocator() -> tuple[Allocator, str]:
    """Return torch's own allocator; or the model, and a sentence that says why torch's own is not run."""
    try:
        return find_torchs_own(), ""
    except MemwatchError as error:
        return Model(), str(error)
