"""CUDA and ROCm devices, by `torch.cuda`, which every build of torch has."""

from __future__ import annotations

from typing import Any, Final

import torch

from memwatch.devices.accelerator import Accelerator
from memwatch.signal_handlers import pass_on

namespace: Final[Any] = torch.cuda
"""torch's module for CUDA, where a device is pretended in it."""


class Cuda(Accelerator):
    """The adapter of CUDA devices; what is not here is as of any accelerator."""

    def __init__(self) -> None:
        super().__init__("cuda")

    @property
    def names(self) -> list[str]:
        """The devices, once CUDA is initialised; asking for their number before would do that in some builds."""
        if not torch.cuda.is_initialized():
            return []
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    def _statistic(self, key: str, name: str) -> int:
        return int(torch.cuda.memory_stats(name).get(key, 0))

    def _segments_of_all(self) -> list[dict[str, Any]]:
        try:
            segments: list[dict[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)
        except TypeError as error:  # an older torch lists the history too, if one is recorded
            pass_on(error)
            segments = torch.cuda.memory_snapshot()
        return segments

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator."""
        return torch.cuda.get_rng_state(name)

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        torch.cuda.set_rng_state(state, name)

    def synchronize(self, name: str) -> None:
        """Wait until the device has done all its work."""
        torch.cuda.synchronize(name)
