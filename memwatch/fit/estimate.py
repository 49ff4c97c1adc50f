"""Estimate a way under a FakeTensorMode, with the sizes of real tensors but without memory and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.flop_counter import FlopCounterMode

from memwatch._torch.fake import FakeTensor, is_fake_mode_on
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import SavedScan
from memwatch.fit.live_bytes import alive_bytes
from memwatch.fit.measurement import Measurement
from memwatch.fit.model_trial import ModelTrial
from memwatch.fit.way import Way
from memwatch.profile import profile

if TYPE_CHECKING:
    from torch import nn

    from memwatch.planner.plan import Plan
    from memwatch.reading import Reading


def is_estimate(model: nn.Module) -> bool:
    """Return True inside a FakeTensorMode, and for a model of fake tensors."""
    return is_fake_mode_on() or any(isinstance(parameter, FakeTensor) for parameter in model.parameters())


class EstimatedTrial(ModelTrial):
    """Estimates ways: the recorder counts the bytes that fake tensors would take, and torch counts the operations."""

    def run(self, way: Way) -> Measurement:
        """Estimate the second of two steps: the first may build the optimizer's state."""
        reading, flops = self._recorded(way)
        real_bytes = alive_bytes(self.device)  # a block of fake tensors counts these alone
        peak_bytes, baseline_bytes = reading.peak_bytes + real_bytes, reading.baseline_bytes + real_bytes
        return Measurement(way, peak_bytes, baseline_bytes, is_estimate=True, flops=flops)

    def scan(self) -> SavedScan:
        """Run steps and return the bytes that the modules save in the last step."""
        found = SavedScan()
        with self.within(Way()):
            self._step()
            with found.watching(self.model):
                self._step()
        found.changing_buffers = {name for name, _ in self.model.named_buffers()}  # fake bytes show no change
        return found

    def recorded(self, way: Way, *, stacks: bool = False) -> Reading:
        """Return the recording of a step in a way."""
        return self._recorded(way)[0]

    def plan(self, way: Way) -> Plan:
        """Refuse: a plan's ops are recorded with their values.

        Raises:
            MemwatchError: always.
        """
        raise MemwatchError("a step of fake tensors cannot be recorded for a plan")

    def _recorded(self, way: Way) -> tuple[Reading, int]:
        with self.within(way):
            self._step()
            with FlopCounterMode(display=False) as counter:
                self._step()
            recording = profile(stacks=False, holders=False)
            with recording:
                self._step()
        reading = recording.on(self.device) if self.device in recording.devices else recording
        return reading, int(counter.get_total_flops())
