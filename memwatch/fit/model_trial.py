"""The common part of trials of a model: the state that is restored, and the way that is active meanwhile."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memwatch.fit.state import State, optimizers_of
from memwatch.fit.way import Applied, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.optim import Optimizer


class ModelTrial:
    """A model, and the function that trains it by one step.

    Attributes:
        model: the model.
        device: the model's device, or the device of its fake tensors.
        optimizers: the optimizers of its parameters.
        state: the state that is restored before each trial and after the last.
    """

    def __init__(self, step: Callable[[], Any], model: nn.Module, device: str) -> None:
        self.model, self.device = model, device
        self.optimizers: list[Optimizer] = optimizers_of(model)
        self.state = State(step, model, self.optimizers)
        self._step = step

    def apply(self, way: Way) -> Applied:
        """Apply a way for good."""
        return Applied(way, self.model, self.optimizers)

    @contextlib.contextmanager
    def within(self, way: Way) -> Iterator[Applied]:
        """Apply a way for a block that begins with the state as it was, and put everything back after it."""
        self.state.restore()
        applied = self.apply(way)
        try:
            yield applied
        finally:
            applied.undo()
            self.state.restore()
