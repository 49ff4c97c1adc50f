"""Any accelerator that torch knows (xpu, mps, a backend of PrivateUse1), by `torch.accelerator` and its own module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDING_BYTES: Final = 512


class Accelerator:
    """The adapter of a kind of accelerator; see `memwatch.devices.adapter.Adapter`.

    Args:
        kind: the type of its devices, as `xpu`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @property
    def _module(self) -> Any:
        """Torch's module of the devices, None where no backend has registered one."""
        return getattr(torch, self._kind, None)

    @property
    def names(self) -> list[str]:
        """The devices, once the backend is initialised; a backend that cannot tell is, from its import on."""
        module = self._module
        if (
            module is None
            or not module.is_available()
            or not getattr(module, "is_initialized", lambda: True)()
        ):
            return []
        return [f"{self._kind}:{index}" for index in range(module.device_count())]

    def allocated_bytes(self, name: str) -> int:
        """Return what the allocator has handed out; 0 for a backend whose allocator has no statistics."""
        return self._statistic("allocated_bytes.all.current", name)

    def reserved_bytes(self, name: str) -> int:
        """Return what the allocator holds; 0 for a backend whose allocator has no statistics."""
        return self._statistic("reserved_bytes.all.current", name)

    def out_of_memory_count(self, name: str) -> int:
        """Return how many times the allocator had no memory left; 0 for a backend that does not count."""
        return self._statistic("num_ooms", name)

    def _statistic(self, key: str, name: str) -> int:
        try:
            return int(torch.accelerator.memory_stats(torch.device(name)).get(key, 0))
        except (AttributeError, RuntimeError, ValueError) as error:
            pass_on(error)
            return 0

    @property
    def rounding_bytes(self) -> int:
        """The least block of c10's caching allocators."""
        return _ROUNDING_BYTES

    @property
    def alignment_bytes(self) -> int:
        """Blocks lie side by side, so the sizes decide."""
        return _ROUNDING_BYTES

    def segments(self, name: str) -> list[dict[str, Any]]:
        """Return the segments of a device; none for a backend whose module has no `memory_snapshot`."""
        index = torch.device(name).index or 0
        return [segment for segment in self._segments_of_all() if segment["device"] == index]

    def _segments_of_all(self) -> list[dict[str, Any]]:
        list_all: Callable[[], list[dict[str, Any]]] = getattr(self._module, "memory_snapshot", list)
        return list_all()

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator; empty for a backend that shows none."""
        read = getattr(self._module, "get_rng_state", None)
        if read is None:
            return torch.empty(0, dtype=torch.uint8)
        state: torch.Tensor = read(torch.device(name))
        return state

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        if len(state):
            self._module.set_rng_state(state, torch.device(name))

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return pinned host memory, or plain memory for a backend that pins none."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, NotImplementedError) as error:
            pass_on(error)
            return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self, name: str) -> None:
        """Wait until the device has done all its work."""
        torch.accelerator.synchronize(torch.device(name))
