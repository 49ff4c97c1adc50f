"""When to look: on the way up, near the high once much was born since, and at the last iteration's peak op.

What looks may cost is bounded. On the way up one is taken whenever the increase is a multiple of what it was at
the one before, so there are few. The others wait for births, twice as long each time until the increase has
grown again; some of them are free, for a short program would have none else, and all after these may take a
small share of the time that the block has been open.
"""

from __future__ import annotations

from typing import Final

from memwatch.record.clock import ticks

_CLIMB_RATIO: Final = 1.4
_NEAR_RATIO: Final = 0.9
_FRESH_RATIO: Final = 0.1
_MAX_AGAIN: Final = 12
_LEAST_RATIO: Final = 0.01
_LEAST_BYTES: Final = 64 * 1024
_TIME_RATIO: Final = 0.04
_ASK_RATIO: Final = 0.02
_FREE_LOOKS: Final = 12
_FREE_DUE: Final = 2
_FREE_ASKS: Final = 1


class LookTimes:
    """The highs seen so far, and what the looks have cost.

    Args:
        base_bytes: what is live when the block is entered.
    """

    def __init__(self, base_bytes: int) -> None:
        self.count = 0
        self.cost_ticks = 0
        self._ask_ticks = 0
        self._asked_count = self._due_count = self._free_count = 0
        self._start_ticks = ticks()
        self._base_bytes = base_bytes
        self._high_bytes = 0
        self._climbed_bytes = min(int(base_bytes * _LEAST_RATIO), _LEAST_BYTES)
        self._born_bytes = 0
        self._again = 0
        self._due_op = -1
        self._iteration_start = 0
        self._iteration_high = (0, -1)

    def iteration_starts(self, op: int) -> None:
        """Plan a look at the op, in the iteration that starts with `op`, at which the last one had its peak."""
        _, peak_op = self._iteration_high
        self._due_op = op + peak_op - self._iteration_start if peak_op >= 0 else -1
        self._iteration_start, self._iteration_high = op, (0, -1)

    def worth_from_bytes(self) -> int:
        """Give the live bytes from which on a birth may be worth a look."""
        if self._due_op >= 0:
            return 0
        near, climb = self._high_bytes * _NEAR_RATIO, self._climbed_bytes * _CLIMB_RATIO
        return self._base_bytes + int(climb if self._again >= _MAX_AGAIN else min(near, climb))

    def is_worth_it(self, born_bytes: int, live_bytes: int, op: int) -> bool:
        """Tell whether to look now, at a birth.

        Args:
            born_bytes: size of what was born.
            live_bytes: what is live with it.
            op: ops started so far.
        """
        self._born_bytes += born_bytes
        if live_bytes > self._iteration_high[0]:
            self._iteration_high = (live_bytes, op)
        increase, high = live_bytes - self._base_bytes, self._high_bytes
        climb = increase > self._climbed_bytes * _CLIMB_RATIO
        if not (climb or self._is_due(op) or self._is_fresh(increase)):
            return False
        if climb:
            self._climbed_bytes, self._again = increase, 0
        self._high_bytes = max(high, increase)
        self._born_bytes = 0
        return True

    def _is_due(self, op: int) -> bool:
        if self._due_op < 0 or op < self._due_op:
            return False
        self._due_op = -1
        self._due_count += 1
        return self._due_count <= _FREE_DUE or self._affordable()

    def _is_fresh(self, increase_bytes: int) -> bool:
        """Tell whether enough was born since the last look, and the high is near or new."""
        high = self._high_bytes
        enough = self._born_bytes >= high * _FRESH_RATIO * 1.5**self._again
        if not enough or increase_bytes < high * _NEAR_RATIO or self._again >= _MAX_AGAIN:
            return False
        if self._free_count < _FREE_LOOKS:
            self._free_count += 1
        elif not self._affordable():
            return False
        self._again += 1
        return True

    def _affordable(self) -> bool:
        return self.cost_ticks <= _TIME_RATIO * (ticks() - self._start_ticks)

    def may_ask(self) -> bool:
        """Tell whether there is time left to ask gc about all objects there are, which takes tens of milliseconds."""
        free = self._asked_count < _FREE_ASKS
        return free or self._ask_ticks <= _ASK_RATIO * (ticks() - self._start_ticks)

    def asked(self, spent_ticks: int) -> None:
        """Note what it took."""
        self._asked_count += 1
        self._ask_ticks += spent_ticks

    def looked(self, spent_ticks: int) -> None:
        """Note what a look took."""
        self.count += 1
        self.cost_ticks += spent_ticks
