"""Takes the place of `memwatch.profile` in a program, and counts the allocator's allocations meanwhile."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile
from truth_events import events_in, peak_increase_bytes


class AllocatorCount:
    """The peak of a block as torch's profiler has it: no part of memwatch takes part.

    Attributes:
        peak_increase_bytes: most bytes that were live at one instant of the block.
    """

    def __init__(self) -> None:
        self.peak_increase_bytes = 0

    def __call__(self, **options):
        """Return itself for `memwatch.profile(...)`."""
        return self

    def step(self):
        """Do nothing for `prof.step()`."""

    def __enter__(self):
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()
        return self

    def __exit__(self, *error):
        self._profiler.__exit__(*error)
        self.peak_increase_bytes = peak_increase_bytes(events_in(self._profiler))
