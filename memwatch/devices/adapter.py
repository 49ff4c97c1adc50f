"""What memwatch asks of a kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Adapter(Protocol):
    """One kind of device. The devices of a kind are named as torch names them: `cpu`, `cuda:0`, `xpu:1`."""

    @property
    def names(self) -> list[str]:
        """The devices that the program has begun to use; none where asking would wake one."""

    def allocated_bytes(self, name: str) -> int:
        """Return what the allocator of a device has handed out, bytes; 0 where nobody counts."""

    def reserved_bytes(self, name: str) -> int:
        """Return what the allocator of a device holds, handed out or not, bytes; 0 where it keeps none."""

    @property
    def rounding_bytes(self) -> int:
        """The sizes of all blocks that the allocator hands out are multiples of this."""

    @property
    def alignment_bytes(self) -> int:
        """Every block begins at a multiple of this, so what is left of its last stretch is of no use to others."""

    def segments(self, name: str) -> list[dict[str, Any]]:
        """Return the segments of a device with their blocks, as torch lists them; none where it does not."""

    def out_of_memory_count(self, name: str) -> int:
        """Return how many times the allocator of a device had no memory left; 0 where nobody counts."""

    def random_state(self, name: str) -> torch.Tensor:
        """Return the state of the default generator of a device."""

    def set_random_state(self, name: str, state: torch.Tensor) -> None:
        """Set the state of the default generator of a device."""

    def host_copy(self, nbytes: int) -> torch.Tensor:
        """Return host memory to which bytes of a device are copied fast; it is not initialised."""

    def synchronize(self, name: str) -> None:
        """Wait until a device has done all its work."""
