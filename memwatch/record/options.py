"""What a block records: the options of `profile()`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from memwatch.record.limits import DeviceLimits
    from memwatch.record.steps.schedule import Schedule


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
