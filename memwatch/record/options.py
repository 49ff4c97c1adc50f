"""The options of `profile()`, checked; among them the limit on the live bytes of each device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from memwatch.device_names import kind_of
from memwatch.errors import OptionError
from memwatch.signal_handlers import pass_on
from memwatch.sizes import parse_bytes

if TYPE_CHECKING:
    import os

    from memwatch.record.steps.schedule import Schedule


NO_LIMIT: Final = 1 << 62
_DEVICE: Final = re.compile(r"[a-z_0-9]+(:[0-9]+)?")

Size = int | str


@dataclass(frozen=True)
class DeviceLimits:
    """The limit of each device, in bytes.

    Attributes:
        every: the limit of a device that is not named.
        named: limits by name; `cuda` is the limit of each CUDA device that has none of its own.
    """

    every: int = NO_LIMIT
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, device: str) -> int:
        """Return the limit of a device."""
        return self.named.get(device, self.named.get(kind_of(device), self.every))


def read_limits(limit: Size | Mapping[str, Size] | None) -> DeviceLimits | None:
    """Return the limits that a size, or sizes by device, stand for; None for none.

    Raises:
        SizeError: a size cannot be read.
        OptionError: a name is no device's.
    """
    if limit is None:
        return None
    if not isinstance(limit, Mapping):
        return DeviceLimits(parse_bytes(limit))
    wrong = [name for name in limit if not _is_device(str(name))]
    if wrong:
        raise OptionError(f"limit_bytes has a limit of {wrong[0]!r}; name devices such as 'cpu' or 'cuda:0'")
    return DeviceLimits(named={str(name): parse_bytes(size) for name, size in limit.items()})


def _is_device(name: str) -> bool:
    """Return True for what torch knows as a device, whether this machine has it or not."""
    try:
        return _DEVICE.fullmatch(name) is not None and torch.device(name) is not None
    except RuntimeError as error:
        pass_on(error)
        return False


@dataclass(frozen=True)
class Options:
    """The options of `memwatch.profile()`; see there."""

    path: str | os.PathLike[str] | None = None
    stacks: bool = True
    holders: bool = True
    allocator: bool = True
    intercept: str = "auto"
    replay: bool = False
    limits: DeviceLimits | None = None
    force: bool = False
    schedule: Schedule | None = None
    keep: str = "all"

    @property
    def chooses_steps(self) -> bool:
        """Whether not every step is kept."""
        return self.schedule is not None or self.keep != "all"
