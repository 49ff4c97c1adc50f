"""Try a way to train on a model: on the live model, or on a model of fake tensors, which only estimates.

Each trial starts from the same state, and everything is put back after it. A live trial reads the allocator's events.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from memwatch._torch.fake import FakeTensor, fake_mode, is_fake_mode_on, reads_values
from memwatch.devices import adapter_of, is_out_of_memory
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import SavedScan, leaves_of
from memwatch.fit.live_bytes import alive_bytes, count_live_bytes
from memwatch.fit.state import State, fingerprint, optimizers_of
from memwatch.fit.way import Applied, Way
from memwatch.planner.plan import Plan, load_plan
from memwatch.profile import Profile, profile
from memwatch.replay.api import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from memwatch.reading import Reading

OUT_OF_MEMORY: Final = "out of memory"
"""The failure of a trial that ran out of memory."""
_COMPARED_STEPS: Final = 2
"""Steps whose results are compared. The first may build the optimizer's state.

The second has this state, and shows how the first step changed the gradients.
"""
LEARNING_STEPS: Final = 3
"""Steps that torch.compile's backend needs before its step is measured: it compiles, measures and plans."""
_MOST_STEPS: Final = 10
"""Steps that are timed at most. A guess."""
_ENOUGH_NS: Final = 200_000_000
"""Nanoseconds, 0.2 s.

Steps are repeated until they have taken this long, so that short steps are timed more than once. A guess.
"""


@dataclass(frozen=True)
class Measurement:
    """The result of one trial of a way.

    Attributes:
        way: the way.
        peak_bytes: the most live bytes of the device; None if the trial failed.
        baseline_bytes: live bytes before the first step.
        step_time_ns: duration of a step, the least of several; None without times.
        results: a digest of the steps' results; None if nothing compares them.
        failure: the reason why the trial failed; "" after a success.
        is_estimate: whether the bytes were estimated with fake tensors.
        flops: floating point operations of an estimated step.
        growth_bytes: bytes that each step left alive; 0 if they did not grow, or if a trial has one step.
    """

    way: Way
    peak_bytes: int | None
    baseline_bytes: int = 0
    step_time_ns: int | None = None
    results: bytes | None = None
    failure: str = ""
    is_estimate: bool = False
    flops: int | None = None
    growth_bytes: int = 0

    def fits(self, limit_bytes: int) -> bool:
        """Return True if the step ran and its peak was at or under the limit."""
        return self.peak_bytes is not None and self.peak_bytes <= limit_bytes

    @property
    def cost(self) -> float:
        """The figure that orders ways: measured time, or else floating point operations."""
        return float(self.flops or 0) if self.step_time_ns is None else float(self.step_time_ns)


class ModelTrial:
    """A model, and the function that trains it by one step.

    Attributes:
        model: the model.
        device: the model's device, or the device of its fake tensors.
        optimizers: the optimizers of its parameters.
        state: the state that is restored before each trial and after the last.
    """

    left_bytes = 0  # memory of earlier trials counts here, because the program's own process has it
    makes_optimizers_later = False  # the program has its optimizers when it calls `fit`

    def __init__(self, step: Callable[[], Any], model: nn.Module, device: str) -> None:
        self.model, self.device = model, device
        self.optimizers: list[Optimizer] = optimizers_of(model)
        self.state = State(step, model, self.optimizers)
        self._step = step

    def apply(self, way: Way) -> Applied:
        """Apply a way, until `undo` of the result."""
        return Applied(way, self.model, self.optimizers)

    @contextlib.contextmanager
    def within(self, way: Way) -> Iterator[Applied]:
        """Restore the state and apply a way for the block. Undo both at its end."""
        self.state.restore()
        applied = self.apply(way)
        try:
            yield applied
        finally:
            applied.undo()
            self.state.restore()


def is_estimate(model: nn.Module) -> bool:
    """Return True inside a FakeTensorMode, and for a model of fake tensors."""
    return is_fake_mode_on() or any(isinstance(parameter, FakeTensor) for parameter in model.parameters())


class EstimatedTrial(ModelTrial):
    """Estimates ways: the recorder counts the bytes that fake tensors would take, and torch the operations."""

    def run(self, way: Way) -> Measurement:
        """Estimate a step after two others, because the first step may build the optimizer's state."""
        reading, flops = self._recorded(way)
        real_bytes = alive_bytes(self.device)  # under fake tensors, the recording does not count real ones
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
        """Raise an error, because the ops of a plan are recorded with their values.

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


class LiveTrial(ModelTrial):
    """Tries ways on the live model and the function that trains it by one step."""

    def run(self, way: Way) -> Measurement:
        """Run some steps in a way, and put everything back."""
        with self.within(way) as applied:
            try:
                if way.is_planned:  # memwatch measures the first steps itself, and plans again
                    for _ in range(LEARNING_STEPS):
                        self._step()
                    self.state.restore()
                    applied.redo()
                return self._measured(way)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return Measurement(way, None, failure=OUT_OF_MEMORY)

    def scan(self) -> SavedScan:
        """Run steps and return the tensors that modules save in the last one.

        Without enough memory the steps are fake.
        """
        found = SavedScan()
        with self.within(Way()):
            try:
                self._step()
                with found.watching(self.model):
                    self._step()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                found = SavedScan()
            else:
                return found
        with contextlib.suppress(*reads_values()), fake_mode():  # such a step has no estimate
            found = EstimatedTrial(self._step, self.model, self.device).scan()
        return found

    def recorded(self, way: Way, *, stacks: bool = False) -> Reading:
        """Return the recording of a step in a way."""
        with self.within(way):
            self._step()  # it builds the state of the optimizer
            recording = profile(stacks=stacks, holders=False)
            with recording:
                self._step()
        return recording.on(self.device) if self.device in recording.devices else recording

    def plan(self, way: Way) -> Plan:
        """Return a plan of a step in a way, to be applied within some budget.

        Raises:
            MemwatchError: the step cannot be recorded for a plan.
        """
        recording = profile(stacks=False, holders=False, replay=True)
        with self.within(way):
            try:
                self._step()
                with recording:
                    self._step()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                raise MemwatchError(OUT_OF_MEMORY) from None
        return plan_of(recording)

    def _measured(self, way: Way) -> Measurement:
        gc.collect()  # free the cycles of earlier trials
        times_ns: list[int] = []
        results = b""
        with count_live_bytes(self.device) as live:
            while len(times_ns) < _COMPARED_STEPS or (
                len(times_ns) < _MOST_STEPS and sum(times_ns[1:]) < _ENOUGH_NS
            ):
                start_ns = time.perf_counter_ns()
                outcome = self._step()
                adapter_of(self.device).synchronize(self.device)
                times_ns.append(time.perf_counter_ns() - start_ns)
                if len(times_ns) <= _COMPARED_STEPS:
                    results += self._results(outcome, with_state=len(times_ns) == _COMPARED_STEPS)
                del outcome
        return Measurement(way, live.peak_bytes, live.baseline_bytes, min(times_ns[1:]), results)

    def _results(self, outcome: Any, *, with_state: bool) -> bytes:
        """Return a digest of a step's result and, if `with_state`, of everything that it trains."""
        leaves = list(leaves_of(outcome))
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        numbers = repr([leaf for leaf in leaves if isinstance(leaf, (bool, int, float))]).encode()
        if with_state:
            tensors += trained(self.model, self.optimizers)
        return fingerprint(tensors) + numbers


def trained(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[torch.Tensor]:
    """Return the tensors that a step writes for the next: parameters, buffers, the state of optimizers."""
    # In the order of the parameters. The order of the states differs between ways: with a step in the backward, the
    # states are made in the order of the backward.
    pairs = [
        (optimizer, parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    states = leaves_of([dict(each.state[parameter]) for each, parameter in pairs if parameter in each.state])
    kept = [leaf for leaf in states if isinstance(leaf, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *kept]


def plan_of(recording: Profile) -> Plan:
    """Return a plan with the content of a recorded step. Checkpoints are chosen when the plan is applied.

    The plan is saved and loaded, because a plan with its recording would keep tensors alive.
    """
    found = plan(recording, order="program", recompute=False)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.plan")
        found.save(path)
        return load_plan(path)


def within_budget(found: Plan, budget_bytes: int) -> Plan:
    """Return a plan with another budget (bytes of peak increase)."""
    return dataclasses.replace(found, budget_bytes=budget_bytes)
