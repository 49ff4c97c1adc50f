"""Try a way on the live model: from the same state each time, with the allocator's events, and put all back."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.fake import fake_mode, reads_values
from memwatch.devices import adapter_of, is_out_of_memory
from memwatch.errors import MemwatchError
from memwatch.fit.blocks import SavedScan, leaves_of
from memwatch.fit.kept_tensors import fingerprint
from memwatch.fit.live_bytes import count_live_bytes
from memwatch.fit.trial import EstimatedTrial, Measurement, ModelTrial, plan_of
from memwatch.fit.way import Way
from memwatch.profile import profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

    from memwatch.planner.plan import Plan
    from memwatch.reading import Reading

OUT_OF_MEMORY: Final = "out of memory"
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


class LiveTrial(ModelTrial):
    """Tries ways on a model and the function that trains it by one step."""

    def run(self, way: Way) -> Measurement:
        """Run some steps in a way, and put everything back."""
        with self.within(way) as applied:
            try:
                if way.is_planned:  # it measures its first steps itself, and plans again
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
            self._step()  # the state of the optimizer is there afterwards
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
        gc.collect()  # cycles of the trial before
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
    """Return all that a step writes for the next: parameters, buffers, the state of optimizers."""
    # in the order of the parameters: the first step makes the states, and a hook steps in the order of the backward
    pairs = [
        (optimizer, parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    states = leaves_of([dict(each.state[parameter]) for each, parameter in pairs if parameter in each.state])
    kept = [leaf for leaf in states if isinstance(leaf, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *kept]
