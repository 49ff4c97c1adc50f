"""The errors of the planner."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class GraphError(MemwatchError, ValueError):
    """The ops given to the planner form no program: a name twice, a cycle, an impossible size."""


class OrderError(MemwatchError, ValueError):
    """An order or a schedule does not compute what the program computes."""


class BudgetError(MemwatchError):
    """No plan that fits the budget was found.

    Attributes:
        best: the plan with the lowest peak that was found.
        bound_bytes: peak increase that no plan can go below (bytes).
    """

    def __init__(self, message: str, best: object, bound_bytes: int) -> None:
        super().__init__(message)
        self.best = best
        self.bound_bytes = bound_bytes
