"""The place of the process in its job, looked up while the process group is there: programs destroy it at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch.job import JobPlace, has_process_group
from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable


class JobPlaceSampler:
    """Keep the place that torch.distributed tells, or what the environment tells."""

    def __init__(self) -> None:
        self._place = JobPlace.here()
        self._patches = Patches()

    @property
    def meta(self) -> dict[str, Any]:
        """What a capture keeps of the place."""
        self.look()
        return self._place.meta

    def look(self) -> None:
        """Look the place up once a process group is there; one that is gone leaves what it told."""
        if self._place.backend is None and has_process_group():
            self._place = JobPlace.here()

    def start(self) -> None:
        """Begin to look whenever a process group is destroyed."""
        if torch.distributed.is_available():
            self._patches.put(torch.distributed, "destroy_process_group", self._destroyed)

    def stop(self) -> None:
        """End it."""
        self._patches.take_off()

    def _destroyed(self, destroy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.look()
        return destroy(*args, **kwargs)
