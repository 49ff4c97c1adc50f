"""plan_graph(): from a program and a budget to a schedule that fits, with what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from memwatch.planner.plan_words import describe_moves, describe_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from memwatch.planner.graph import Graph
    from memwatch.planner.op import Name
    from memwatch.planner.schedule import Schedule

OrderChoice: TypeAlias = "str | Callable[[Graph], Sequence[int]]"


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule and what is known about it.

    Attributes:
        schedule: the steps.
        order: names of the ops in the order they are computed; a repeated one is a recompute.
        moves: what the plan does differently from the program, in words.
        peak_increase_bytes: peak of the plan above what is live before the first op.
        program_peak_increase_bytes: the same of the program as it was recorded.
        lower_bound_bytes: no plan of this kind has a lower peak increase.
        extra_cost_ratio: extra cost, moves included, as a share of the program's cost.
        moved_bytes: bytes moved out and back.
        budget_bytes: the peak increase that was allowed, None where the lowest was wanted.
        fingerprint: of the program; a plan fits this program only.
        graph: the program, None for a plan that was loaded from a file.
    """

    schedule: Schedule
    order: list[Name]
    moves: list[str]
    peak_increase_bytes: int
    program_peak_increase_bytes: int
    lower_bound_bytes: int
    extra_cost_ratio: float
    moved_bytes: int
    budget_bytes: int | None
    fingerprint: str
    graph: Graph | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return describe_plan(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON; `load_plan` reads it.

        Raises:
            PlanFileError: an op has a name that JSON cannot hold.
        """
        from memwatch.planner.plan_file import save_plan

        save_plan(self, path)


def plan_graph(
    graph: Graph,
    *,
    budget: int | float | str | None = None,
    order: OrderChoice = "auto",
    recompute: bool = True,
    offload: bool = False,
    bandwidth: float | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> Plan:
    """Find the cheapest schedule of a program that fits a budget.

    The peak is never above the program's own, never above the budget, and never rises when the budget of
    the same program falls.

    Args:
        graph: the program.
        budget: peak increase allowed: bytes, ``"512 MiB"``, or ``"60%"`` of the program's own. None: the
            lowest peak that an order alone, without extra cost, can reach.
        order: ``"auto"`` searches, ``"program"`` keeps the program's, a function of the graph returns its
            own as op indices and is taken at its word.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back.
        bandwidth: bytes moved in the time of one unit of op cost; see `offload.default_bandwidth`.
        time_limit_s: when to stop searching (seconds). Programs of a few hundred ops are done before:
            their plan depends on the seed alone.
        seed: seed of the random moves.

    Returns:
        The plan.

    Raises:
        BudgetError: no plan fits; holds the lowest one that was found.
        OrderError: the order is none of the above or not valid.
        SizeError: the budget cannot be read.
    """
    from memwatch.planner.plan_search import Wish, make_plan

    wish = Wish(order, recompute, offload, bandwidth, time_limit_s, seed)
    return make_plan(graph, budget, wish)


__all__ = ["OrderChoice", "Plan", "describe_moves", "plan_graph"]
