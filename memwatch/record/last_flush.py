"""How long ago rows were written: a flush has a price of its own, however few rows it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.record.clock import Clock, ticks

if TYPE_CHECKING:
    from memwatch.record.tables.op_counter import OpCounter

_FEWEST_OPS: Final = 1_000
"""So many ops are worth a flush: its price is then a few hundredths of what they take."""


class LastFlush:
    """When rows were last written, in ops and in time.

    Args:
        op_counter: the ops that have started.
        clock: the clock of the block.
    """

    def __init__(self, op_counter: OpCounter, clock: Clock) -> None:
        self._op_counter, self._clock = op_counter, clock
        self.is_now()

    def is_now(self) -> None:
        """Note that rows are written."""
        self._op, self._ticks = self._op_counter[0], ticks()

    def is_within(self, seconds: float) -> bool:
        """Return whether so many seconds have not passed since."""
        return bool(self._clock.duration_ns(ticks() - self._ticks) < seconds * 1e9)

    def is_long_ago(self, seconds: float) -> bool:
        """Return whether a thousand ops, or so many seconds, have passed since."""
        waiting_ns = self._clock.duration_ns(ticks() - self._ticks)
        return self._op_counter[0] - self._op >= _FEWEST_OPS or waiting_ns >= seconds * 1e9
