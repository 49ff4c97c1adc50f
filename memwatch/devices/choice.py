"""Which adapter a device has, and which devices the program uses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from memwatch.device_names import CPU, kind_of
from memwatch.devices.accelerator import Accelerator
from memwatch.devices.cpu import Cpu
from memwatch.devices.cuda import Cuda

if TYPE_CHECKING:
    from memwatch.devices.adapter import Adapter


def adapter_of(name: str) -> Adapter:
    """Return the adapter of a device, such as `cpu` or `cuda:0`."""
    return _adapter_of_kind(kind_of(name))


@cache
def _adapter_of_kind(kind: str) -> Adapter:
    if kind == CPU:
        return Cpu()
    return Cuda() if kind == "cuda" else Accelerator(kind)


def devices_in_use() -> list[str]:
    """Return the host, and the devices of the accelerator that the program has begun to use."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = [CPU] if accelerator is None else [CPU, accelerator.type]
    return [name for kind in kinds for name in adapter_of(kind).names]
