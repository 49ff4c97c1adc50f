"""The errors of the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Collection


class GraphError(MemwatchError, ValueError):
    """The ops given to the planner form no program: a name twice, a cycle, an impossible size."""


class OrderError(MemwatchError, ValueError):
    """An order or a schedule does not compute the same as the program."""


class BudgetError(MemwatchError):
    """No plan that fits the budget was found.

    Attributes:
        best: the plan with the lowest peak that was found. From `fit`, the measurement of the way with the lowest
            peak; None if no way could run.
        bound_bytes: peak increase that no plan can go below (bytes). From `fit`, the live bytes before the step.
        reason: why no plan fits.
        options: the options that would allow a lower peak. The message advises to use them.
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
        """Return a new error that advises only options that the caller has."""
        options = tuple(each for each in self.options if each in existing)
        return BudgetError(self.reason, self.best, self.bound_bytes, options, self._given_advice)

    def because(self, reason: str) -> BudgetError:
        """Return a new error with one more reason; this error if the reason is empty."""
        if not reason:
            return self
        return BudgetError(
            f"{self.reason}; {reason}", self.best, self.bound_bytes, self.options, self._given_advice
        )


def _advice(options: tuple[str, ...]) -> str:
    return f"allow {' or '.join(options)}" if options else ""
