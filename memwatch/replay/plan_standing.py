"""Plan a sequence of runs with what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwatch.replay.step_model import StepModel
from memwatch.replay.step_planner import plan_step, program_order, remembered

if TYPE_CHECKING:
    from memwatch.replay.options import BackendOptions
    from memwatch.replay.standing import Standing
    from memwatch.replay.step_model import Orders


@dataclass(frozen=True)
class StandingPlanner:
    """Plans sequences as the user asked for.

    Attributes:
        options: what the user asked for.
        device: device whose bytes count.
    """

    options: BackendOptions
    device: str

    def model(self, standing: Standing, *, hopes: bool = False) -> StepModel:
        """Return the program of a sequence; hopes: it lets go of all outputs before the backward."""
        model = StepModel(standing.as_runs(hopes=hopes), self.device)
        model.graph = remembered(model.graph)
        return model

    def torchs_orders(self, standing: Standing) -> Orders:
        """Return the orders of torch's own partition, or the program's where they cannot be told."""
        model = self.model(standing)
        own = model.torchs_own()
        orders = None if own is None else model.cut(own)
        return orders or program_order(model)

    def plan(self, standing: Standing, budget_bytes: int | None, *, hopes: bool = False) -> Orders:
        """Return orders within the budget, or the lowest ones found, and note in the standing which they are."""
        model = self.model(standing, hopes=hopes)
        wanted = None if budget_bytes is None else max(budget_bytes - standing.unmodelled_bytes, 0)
        planned = plan_step(model, model.torchs_own(), wanted, self.options)
        graphs = [run.graph for run in standing.runs]
        parts = {graph: graph.split() for graph in set(graphs)} if planned.is_lowest else {}
        if any(parts.values()):
            model = self.model(standing)
            order = model.with_parts(planned.orders.whole, [parts[graph] for graph in graphs])
            planned = plan_step(model, model.torchs_own(), wanted, self.options, [order])
        may_draw = planned.is_lowest and self.options.recompute
        states = {graph: graph.keep_random_states() for graph in set(graphs)} if may_draw else {}
        if any(states.values()):
            model = self.model(standing)
            order = model.with_states(planned.orders.whole, [states[graph] for graph in graphs])
            planned = plan_step(model, model.torchs_own(), wanted, self.options, [order])
        standing.has_news, standing.is_lowest, standing.error = False, planned.is_lowest, planned.error
        return planned.orders

    def hope(self, standing: Standing, budget_bytes: int | None, before: Orders) -> Orders:
        """Return lower orders, which hold if the program lets go of all outputs before the backward, or those before.

        The first step is measured, and tells which outputs it holds.
        """
        error = standing.error
        orders = self.plan(standing, budget_bytes, hopes=True)
        if orders.peak_increase_bytes < before.peak_increase_bytes:
            return orders
        standing.error = error
        return before
