"""The processor time that the monitor may take: a credit for its first minutes, and a share of the time after that.

A verdict needs a number of samples. If each of them had to wait until a small share of the elapsed time has paid for
it, a program that fills the memory in a few minutes would end without a verdict. So the monitor begins with a credit.
Samples and searches have a budget each: a search costs as much as ten samples, and would delay the samples otherwise.
"""

from __future__ import annotations

import time
from typing import Final

SAMPLES_CREDIT_S: Final = 2.0
"""Twenty samples. In a program that imports torch (170,000 objects) a sample takes 0.09 s of processor time."""
SAMPLES_RATIO: Final = 0.005
SEARCHES_CREDIT_S: Final = 2.5
"""One search of the Python objects and one for the holder of those that grew: 0.65 s and 1.75 s in that program."""
SEARCHES_RATIO: Final = 0.0025
"""Together the budgets allow 4.5 s and 0.75 % of the time. After half an hour, that is less than 1 % of the time."""
MOST_RATIO: Final = 0.05
"""Of one processor, while there is credit: 15 samples take half a minute or longer. A guess: a verdict on the first
seconds of a program would be one on its start."""


class Budget:
    """Processor time that may be spent on one purpose.

    Args:
        credit_s: what may be spent at once.
        ratio: the share of the time that may be spent beside it.
    """

    def __init__(self, credit_s: float, ratio: float) -> None:
        self._credit_s, self._ratio = credit_s, ratio
        self._allowed_s = credit_s
        self._spent_s = 0.0
        self._started_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """What may be spent now. It is negative after something that cost more than that."""
        return self._allowed_s + self._ratio * (time.monotonic() - self._started_s) - self._spent_s

    def spend(self, cost_s: float) -> None:
        """Count what was spent."""
        self._spent_s += cost_s

    def renew_credit(self) -> None:
        """Allow as much again as at the start."""
        self._allowed_s += self._credit_s

    def wait_s(self, cost_s: float) -> float:
        """Return the seconds until a cost may be spent."""
        return max((cost_s - self.left_s) / self._ratio, 0.0)

    def gap_s(self, cost_s: float, least_s: float) -> float:
        """Return the seconds between two of many things that cost as much, from now on.

        Args:
            cost_s: the cost of each.
            least_s: the gap if they cost nothing.
        """
        is_on_credit = self.left_s >= cost_s
        return max(least_s, cost_s / (MOST_RATIO if is_on_credit else self._ratio))

    def seconds_for(self, number: int, cost_s: float, least_s: float) -> float:
        """Return the seconds that pass until a number of things with a cost is done."""
        return max(number * max(least_s, cost_s / MOST_RATIO), self.wait_s(number * cost_s))
