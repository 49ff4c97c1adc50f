"""Estimate a way under a FakeTensorMode: sizes as real tensors would have, no memory, no time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import FlopCounterMode

from memwatch._torch.fake import FakeTensor, is_fake_mode_on
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import SavedScan
from memwatch.fit.live_bytes import alive_bytes
from memwatch.fit.measurement import Measurement
from memwatch.fit.state import State, optimizers_of
from memwatch.fit.way import Applied, Way
from memwatch.profile import profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.optim import Optimizer

    from memwatch.planner.plan import Plan
    from memwatch.reading import Reading


def is_estimate(model: nn.Module) -> bool:
    """Return True inside a FakeTensorMode, and for a model of fake tensors."""
    return is_fake_mode_on() or any(isinstance(parameter, FakeTensor) for parameter in model.parameters())


class EstimatedTrial:
    """Estimates ways: the recorder counts what fake tensors would take, and torch counts the operations.

    Attributes:
        model: the model.
        optimizers: the optimizers of its parameters.
        state: what is put back before each estimate and after the last.
        device: the device that the fake tensors pretend to be on.
    """

    def __init__(self, step: Callable[[], Any], model: nn.Module, device: str) -> None:
        self.model, self.device = model, device
        self.optimizers: list[Optimizer] = optimizers_of(model)
        self.state = State(step, model, self.optimizers)
        self._step = step

    def run(self, way: Way) -> Measurement:
        """Estimate the second of two steps: the first may build the optimizer's state."""
        reading, flops = self._recorded(way)
        real_bytes = alive_bytes(self.device)  # a block of fake tensors counts these alone
        peak_bytes, baseline_bytes = reading.peak_bytes + real_bytes, reading.baseline_bytes + real_bytes
        return Measurement(way, peak_bytes, baseline_bytes, is_estimate=True, flops=flops)

    def scan(self) -> SavedScan:
        """Run steps and return what the modules save in the last of them."""
        found = SavedScan()
        with self.within(Way()):
            self._step()
            with found.watching(self.model):
                self._step()
        found.changing_buffers = {name for name, _ in self.model.named_buffers()}  # fake bytes show no change
        return found

    def recorded(self, way: Way) -> Reading:
        """Return the recording of a step in a way."""
        return self._recorded(way)[0]

    def plan(self, way: Way) -> Plan:
        """Refuse: a plan's ops are recorded with their values.

        Raises:
            MemwatchError: always.
        """
        raise MemwatchError("a step of fake tensors cannot be recorded for a plan")

    def apply(self, way: Way) -> Applied:
        """Put a way in force for good."""
        return Applied(way, self.model, self.optimizers)

    @contextlib.contextmanager
    def within(self, way: Way) -> Iterator[Applied]:
        """Put a way in force for a block that begins with the state as it was, and put everything back after it."""
        self.state.restore()
        applied = Applied(way, self.model, self.optimizers)
        try:
            yield applied
        finally:
            applied.undo()
            self.state.restore()

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
