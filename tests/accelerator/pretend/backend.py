"""The backend itself: a process that imports this has the accelerator for ever.

So it is imported where nothing else is tested, as in the fork of `conftest.py`.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch
from libraries import PRETEND, library

KIND = "pretend"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(PRETEND, library(PRETEND))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_pretend = _load()
torch.utils.rename_privateuse1_backend(KIND)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

snapshot, record_history = _pretend.snapshot, _pretend.record_history
pinned_bytes, take, give_back = _pretend.pinned_bytes, _pretend.take, _pretend.give_back
set_limit, hold = _pretend.set_limit, _pretend.hold
set_outside, set_pool = _pretend.set_outside, _pretend.set_pool


def index(device) -> int:
    """Return the number of a device, which may be given without one."""
    number = torch.device(device).index if not isinstance(device, int) else device
    return torch.accelerator.current_device_index() if number is None else number


def stats(device: str) -> dict[str, int]:
    """Return the allocator's figures for a device."""
    return torch.accelerator.memory_stats(torch.device(device))


def reset_peaks() -> None:
    """Let the peaks of all devices begin anew."""
    for device in range(_pretend.DEVICES):
        torch.accelerator.reset_peak_memory_stats(device)


def memory_snapshot() -> list[dict]:
    """Return the segments of all devices with their blocks, as `torch.cuda.memory_snapshot` does."""
    return snapshot()["segments"]


class _Module(ModuleType):
    """The module that a backend registers as `torch.NAME`."""

    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: _pretend.DEVICES)
    current_device = staticmethod(torch.accelerator.current_device_index)
    memory_snapshot = staticmethod(memory_snapshot)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])

    @staticmethod
    def get_rng_state(device=KIND):
        return _pretend.default_generator(index(device)).get_state()

    @staticmethod
    def set_rng_state(state, device=KIND):
        _pretend.default_generator(index(device)).set_state(state)

    @staticmethod
    def manual_seed_all(seed):
        for device in range(_pretend.DEVICES):
            _pretend.default_generator(device).manual_seed(seed)


torch._register_device_module(KIND, _Module(KIND))
