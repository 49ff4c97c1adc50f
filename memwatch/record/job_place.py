"""The place of the process in its job, looked up while the process group is there: programs destroy it at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch.job import JobPlace
from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable


class JobPlaceSampler:
    """Keep the last place that torch.distributed told, or what the environment tells."""

    def __init__(self) -> None:
        self._place = JobPlace.here()
        self._patches = Patches()

    @property
    def meta(self) -> dict[str, Any]:
        """What a capture keeps of the place."""
        self.look()
        return self._place.meta

    def look(self) -> None:
        """Look the place up now; a process group that is gone leaves what it told."""
        place = JobPlace.here()
        if place.backend is not None or self._place.backend is None:
            self._place = place

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
