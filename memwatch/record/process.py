"""Samples of the process: resident memory and what the machine could still give."""

from __future__ import annotations

import psutil

from memwatch.record.clock import ticks
from memwatch.record.tables.rows import Rows


class ProcessSampler:
    """Append rows of `process` when asked."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._process = psutil.Process()

    def sample(self) -> None:
        """Append one sample, now."""
        self.rows += (ticks(), self._process.memory_info().rss, psutil.virtual_memory().available)
