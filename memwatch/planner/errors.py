"""The errors of the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Collection


class GraphError(MemwatchError, ValueError):
    """The ops given to the planner form no program: a name twice, a cycle, an impossible size."""


class OrderError(MemwatchError, ValueError):
    """An order or a schedule does not compute what the program computes."""


class BudgetError(MemwatchError):
    """No plan that fits the budget was found.

    Attributes:
        best: the plan with the lowest peak that was found.
        bound_bytes: peak increase that no plan can go below (bytes).
        reason: what stands in the way.
        options: the options that would allow more; the message advises to use them.
    """

    def __init__(
        self, reason: str, best: object, bound_bytes: int, options: tuple[str, ...] = (), advice: str = ""
    ) -> None:
        super().__init__("; ".join(part for part in (reason, advice or _advice(options)) if part))
        self.reason = reason
        self.best = best
        self.bound_bytes = bound_bytes
        self.options = options
        self._given_advice = advice

    def for_options(self, existing: Collection[str]) -> BudgetError:
        """Return a new error that reads as this one does for a caller who has some of the options only."""
        options = tuple(each for each in self.options if each in existing)
        return BudgetError(self.reason, self.best, self.bound_bytes, options, self._given_advice)

    def because(self, reason: str) -> BudgetError:
        """Return a new error that has one more reason; this one if there is none."""
        if not reason:
            return self
        return BudgetError(
            f"{self.reason}; {reason}", self.best, self.bound_bytes, self.options, self._given_advice
        )


def _advice(options: tuple[str, ...]) -> str:
    return f"allow {' or '.join(options)}" if options else ""
