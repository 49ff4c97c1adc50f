"""The process of a block: its resident memory, its place in a job, and the processes that it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil

from memwatch.record.clock import ticks
from memwatch.record.job_place import JobPlaceSampler
from memwatch.record.started_processes import StartedProcesses
from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable


class ProcessSampler:
    """Append rows of `process` when asked, and note the processes that started.

    Args:
        note: takes the kind and the words of a note.
    """

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self.rows = Rows()
        self._note = note
        self._process = psutil.Process()
        self._job_place, self._children = JobPlaceSampler(), StartedProcesses()

    @property
    def meta(self) -> dict[str, Any]:
        """The place in the job, as a capture keeps it."""
        return self._job_place.meta

    def start(self) -> None:
        """Begin to hear of process groups and of processes that start."""
        self._job_place.start()
        self._children.start()

    def stop(self) -> None:
        """End it, and note what started."""
        self._children.stop()
        self._job_place.stop()
        if self._children.text:
            self._note("children", self._children.text)

    def sample(self) -> None:
        """Append one sample, now."""
        self.rows += (ticks(), self._process.memory_info().rss, psutil.virtual_memory().available)
        self._job_place.look()
