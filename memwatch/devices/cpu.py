"""The host: malloc hands out, and keeps nothing that torch knows of."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from memwatch.device_names import CPU
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905


class _MallInfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@cache
def _mallinfo() -> Callable[[], _MallInfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2  # glibc 2.33 and later
    except (AttributeError, OSError, TypeError) as error:
        pass_on(error)
        return None
    function.restype = _MallInfo2
    return function


class Cpu:
    """The adapter of the host; see `memwatch.devices.adapter.Adapter`."""

    @property
    def names(self) -> list[str]:
        """The host alone."""
        return [CPU]

    def allocated_bytes(self, name: str) -> int:
        """Return what malloc has handed out to the whole process, in about a microsecond."""
        function = _mallinfo()
        if function is None:
            return 0
        info = function()
        return int(info.uordblks + info.hblkhd)

    def reserved_bytes(self, name: str) -> int:
        """Return 0: what malloc keeps is not torch's."""
        return 0

    @property
    def rounding_bytes(self) -> int:
        """One: torch's books of the host are of what was asked for."""
        return 1

    @property
    def alignment_bytes(self) -> int:
        """What c10 asks malloc for."""
        return 64

    def segments(self, name: str) -> list[dict[str, Any]]:
        """Return none: what malloc keeps is not torch's."""
        return []

    def out_of_memory_count(self, name: str) -> int:
        """Return 0: nobody counts."""
        return 0

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator."""
        return torch.default_generator.get_state()

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator."""
        torch.default_generator.set_state(state)

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return plain host memory."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self, name: str) -> None:
        """Return at once: the host runs ops as they are called."""
