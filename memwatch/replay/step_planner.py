"""Plan a step within a budget: an order for each of its graphs, with a peak that is never above torch's own partition.

`plan_step` plans one step. `SequencePlanner` makes the step from the measurements of a sequence of runs, and plans it.
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
    from memwatch.replay.sequences import KnownSequence
    from memwatch.replay.step_model import Orders


_MOST_TRIES: Final = 3
"""Plans per budget: cutting a plan into graphs adds some bytes, so the next try aims lower. A guess."""
_MOST_GRAPHS: Final = 32
"""Graphs of the planner that are remembered, the latest ones. A guess."""
_graphs: Final[OrderedDict[tuple[str, bytes], Graph]] = OrderedDict()


@dataclass(frozen=True)
class PlannedStep:
    """The result of planning a step.

    Attributes:
        orders: the orders of the graphs.
        is_lowest: whether no orders fit the budget, and these are the lowest ones found.
        error: the error of the planner that says why no plan fits.
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
        own: the order of torch's own partition, if it is known. The plan's peak is never above its peak.
        wanted_bytes: the budget; None for the lowest peak that an order alone can reach.
        options: the user's options.
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
        # Cutting the plan into graphs added `more` bytes. The next plan will need about as many, so aim lower.
        more = found.orders.peak_increase_bytes - found.uncut_bytes
        target = max(min(target - over, wanted_bytes - more), 0)
    assert best is not None, "something was planned"
    if options.offload:  # after the cut into graphs, a plan with moves can take more than a plan without them
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
        plan = raised.best
        # the traceback would keep the variables of the program's frames alive
        error = raised.with_traceback(None)
    orders = model.cut(model.steps_of(plan)) or program_order(model)
    return PlannedStep(orders, is_lowest=error is not None, error=error, uncut_bytes=plan.peak_increase_bytes)


def program_order(model: StepModel) -> Orders:
    """Return the program's own order, which is always valid."""
    found = model.cut(model.graph.op_names)
    assert found is not None, "the program's own order is valid"
    return found


def equal_graph(graph: Graph) -> Graph:
    """Return the equal graph that was planned before, if any. The planner remembers its plans for other budgets."""
    key = fingerprint(graph), graph.op_workspace_bytes.tobytes()
    found = _graphs.setdefault(key, graph)
    _graphs.move_to_end(key)
    while len(_graphs) > _MOST_GRAPHS:
        _graphs.popitem(last=False)
    return found


@dataclass(frozen=True)
class SequencePlanner:
    """Plans sequences with the user's options.

    Attributes:
        options: the user's options.
        device: device whose bytes count.
    """

    options: BackendOptions
    device: str

    def model(self, sequence: KnownSequence, *, outputs_released: bool = False) -> StepModel:
        """Return the model of a sequence; see `KnownSequence.as_runs`."""
        model = StepModel(sequence.as_runs(outputs_released=outputs_released), self.device)
        model.graph = equal_graph(model.graph)
        return model

    def torch_orders(self, sequence: KnownSequence) -> Orders:
        """Return the orders of torch's own partition, or the program's orders where torch's are not known."""
        model = self.model(sequence)
        own = model.torch_partition_order()
        orders = None if own is None else model.cut(own)
        return orders or program_order(model)

    def plan(
        self, sequence: KnownSequence, budget_bytes: int | None, *, outputs_released: bool = False
    ) -> Orders:
        """Return orders within the budget, or the lowest ones found; set `is_lowest` and `error` of the sequence."""
        model = self.model(sequence, outputs_released=outputs_released)
        wanted = None if budget_bytes is None else max(budget_bytes - sequence.unmodelled_bytes, 0)
        planned = plan_step(model, model.torch_partition_order(), wanted, self.options)
        graphs = [run.graph for run in sequence.runs]
        parts = {graph: graph.split() for graph in set(graphs)} if planned.is_lowest else {}
        if any(parts.values()):
            model = self.model(sequence)
            order = model.with_parts(planned.orders.whole, [parts[graph] for graph in graphs])
            planned = plan_step(model, model.torch_partition_order(), wanted, self.options, [order])
        may_draw = planned.is_lowest and self.options.recompute
        states = {graph: graph.keep_random_states() for graph in set(graphs)} if may_draw else {}
        if any(states.values()):
            model = self.model(sequence)
            order = model.with_states(planned.orders.whole, [states[graph] for graph in graphs])
            planned = plan_step(model, model.torch_partition_order(), wanted, self.options, [order])
        sequence.has_new_measurements = False
        sequence.is_lowest = planned.is_lowest
        sequence.error = planned.error
        return planned.orders

    def plan_for_released_outputs(
        self, sequence: KnownSequence, budget_bytes: int | None, before: Orders
    ) -> Orders:
        """Plan as if the program drops all outputs before the backward; return `before` if that is not lower.

        The first step is measured, and shows which outputs the program holds.
        """
        error = sequence.error
        orders = self.plan(sequence, budget_bytes, outputs_released=True)
        if orders.peak_increase_bytes < before.peak_increase_bytes:
            return orders
        sequence.error = error
        return before
