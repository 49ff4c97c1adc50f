"""Plan a step within a budget: an order for each of its graphs, never above what torch's own partition takes.

`StandingPlanner` does so for a sequence of runs, with what is known of it.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memwatch.planner import BudgetError, Graph, Plan, plan_graph
from memwatch.planner.graph import fingerprint
from memwatch.replay.rewrite import Move
from memwatch.replay.step_model import StepModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.planner.graph import Name
    from memwatch.replay.options import BackendOptions
    from memwatch.replay.standing import Standing
    from memwatch.replay.step_model import Orders


_MOST_TRIES: Final = 3
_MOST_GRAPHS: Final = 32
_graphs: Final[OrderedDict[tuple[str, bytes], Graph]] = OrderedDict()


@dataclass(frozen=True)
class PlannedStep:
    """What was found for a budget.

    Attributes:
        orders: how the graphs run.
        is_lowest: whether these are the lowest orders found, above the budget.
        error: why nothing fits, in the planner's words.
        uncut_bytes: the peak increase of the plan before it was cut into graphs.
    """

    orders: Orders
    is_lowest: bool = False
    error: BudgetError | None = None
    uncut_bytes: int = 0


def plan_step(
    model: StepModel,
    own: Sequence[Name] | None,
    wanted_bytes: int | None,
    options: BackendOptions,
    others: Sequence[Sequence[Name]] = (),
) -> PlannedStep:
    """Return orders within a budget, or the lowest ones found.

    Args:
        model: the step.
        own: the order of torch's own partition, if it is known; no plan is above it.
        wanted_bytes: the budget; None for the lowest peak that an order alone can reach.
        options: what the user asked for.
        others: other orders to begin with.
    """
    known = [own] if own is not None and options.recompute and options.order == "auto" else []
    own_peak = model.peak_of(known[0]) if known else None
    if wanted_bytes is None:
        found = _plan(model, None, [], options)
        if own_peak is None or found.orders.peak_increase_bytes <= own_peak:
            return found
        return _plan(model, own_peak, known, options)
    known += [order for order in others if known and not any(isinstance(name, Move) for name in order)]
    target = wanted_bytes if own_peak is None else min(wanted_bytes, own_peak)
    best: PlannedStep | None = None
    for _ in range(_MOST_TRIES):
        found = _plan(model, target, known, options)
        over = found.orders.peak_increase_bytes - wanted_bytes
        if over <= 0:
            return PlannedStep(found.orders)
        if best is None or found.orders.peak_increase_bytes < best.orders.peak_increase_bytes:
            best = found
        if found.is_lowest:
            break
        # cut into graphs, the plan takes a little more: so will the next one, which must be another one
        more = found.orders.peak_increase_bytes - found.uncut_bytes
        target = max(min(target - over, wanted_bytes - more), 0)
    assert best is not None, "something was planned"
    if options.offload:  # cut into graphs, a plan with moves may end above one without
        other = plan_step(model, own, wanted_bytes, dataclasses.replace(options, offload=False))
        if other.orders.peak_increase_bytes < best.orders.peak_increase_bytes:
            return other
    return PlannedStep(best.orders, is_lowest=True, error=best.error)


def _plan(
    model: StepModel, target: int | None, known: Sequence[Sequence[Name]], options: BackendOptions
) -> PlannedStep:
    error = None
    try:
        plan = plan_graph(
            model.graph,
            budget=target,
            order=options.order,
            recompute=options.recompute,
            offload=options.offload,
            movable=model.movable if options.offload else None,
            time_limit_s=options.time_limit_s,
            seed=options.seed,
            known=known,
            name_of=model.text_of,
        )
    except BudgetError as raised:
        if not isinstance(raised.best, Plan):
            raise
        # its traceback would keep what the frames of the program hold
        plan, error = raised.best, raised.with_traceback(None)
    orders = model.cut(model.steps_of(plan)) or program_order(model)
    return PlannedStep(orders, is_lowest=error is not None, error=error, uncut_bytes=plan.peak_increase_bytes)


def program_order(model: StepModel) -> Orders:
    """Return the program's own order, which always holds."""
    found = model.cut(model.graph.op_names)
    assert found is not None, "the program's own order is valid"
    return found


def remembered(graph: Graph) -> Graph:
    """Return the same program as it was planned before, so that the answers to its budgets agree with each other."""
    key = fingerprint(graph), graph.op_workspace_bytes.tobytes()
    found = _graphs.setdefault(key, graph)
    _graphs.move_to_end(key)
    while len(_graphs) > _MOST_GRAPHS:
        _graphs.popitem(last=False)
    return found


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
