"""What a block records: the options of `profile()`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from memwatch.record.limits import DeviceLimits


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
