"""Runs of torch's own code: a backward, or the step of an optimizer. No code of the program runs meanwhile.

The variables of the program do not change during such a run. So a sample at the end of it is as good as a sample at
each op of the run, and one sample is enough for all peaks in it. A checkpointed region that runs again ends a run,
because it is code of the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.record.clock import ticks
from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.holders.state import SamplingState

_FREE_SAMPLES: Final = 12
"""Samples at ends of runs that are taken whatever they cost: two steps of a model with four checkpointed blocks."""
_FREE_GRADIENTS: Final = 2_000
"""Leaves whose `.grad` is read at ends of runs whatever it costs: about 2 ms."""
_GRADIENTS_PER_OP: Final = 0.25
"""Further leaves for each op of the program. Reading one takes 1 us, and an op takes at least 10."""


class TorchRuns:
    """The present run of torch's own code, and the past runs with samples.

    Args:
        state: the state that samples share.
        highs: returns the most live bytes of each device so far, and when in ticks; empty without the allocator's
            events.

    Attributes:
        rows: rows of `torch_runs`.
    """

    def __init__(self, state: SamplingState, highs: Callable[[], dict[int, tuple[int, int]]]) -> None:
        self.rows = Rows()
        self._state, self._highs = state, highs
        self._start: tuple[int, int, int] | None = None
        self._sampled_high: dict[int, int] = {}
        self._free_count = self._gradient_count = 0

    def begins(self) -> None:
        """Note that from now on only torch's own code runs."""
        self._start = self._state.op_counter[0], ticks(), self._state.costs.count

    def devices_with_new_peak(self) -> list[int]:
        """Return the devices that had a new peak in the run that ends now, if a sample for them is affordable."""
        if self._start is None:
            return []
        start_op, start_ticks, _ = self._start
        if self._state.op_counter[0] == start_op:
            return []
        highs, found = self._highs(), []
        for device, schedule in self._state.schedules.items():
            if device in highs:
                high_bytes, at_ticks = highs[device]
                is_new = at_ticks >= start_ticks and high_bytes > self._sampled_high.get(device, 0)
            else:  # without the allocator's events, only the reported births are known
                high_bytes, is_new = 0, schedule.peak_op > start_op
            if is_new:
                found.append((device, high_bytes))
        if not found or not self._may_sample():
            return []
        self._sampled_high.update(found)
        return [device for device, _ in found]

    def may_note_gradients(self, count: int) -> bool:
        """Return True if the gradients of some leaves may be noted at the end of this run.

        A later run of the same backward may have the peak, and they are in `.grad` since this run.
        """
        self._gradient_count += count
        return self._gradient_count <= max(_FREE_GRADIENTS, self._state.op_counter[0] * _GRADIENTS_PER_OP)

    def _may_sample(self) -> bool:
        if self._free_count < _FREE_SAMPLES:
            self._free_count += 1
            return True
        return self._state.costs.is_affordable()

    def ends(self) -> None:
        """Note that the run is over. Append its row if a sample was taken in it."""
        if self._start is None:
            return
        start_op, _, count = self._start
        self._start = None
        if self._state.costs.count > count:
            self.rows += (start_op, self._state.op_counter[0])
