"""How often a function is called to see what each call adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from memwatch.errors import MemwatchError

AUTO: Final = "auto"
PERIOD: Final = 4
"""A leak on every n-th call is found up to this n."""
_FURTHER: Final = 32
MOST_BYTES: Final = 2**30
"""No further calls are made once what they left is more."""
MOST_S: Final = 20.0
"""No further calls are made, beyond the first few, once they took longer."""

Runs = int | Literal["auto"]


class RunsError(MemwatchError, ValueError):
    """The number of warm-up or measured runs makes no sense."""


@dataclass(frozen=True)
class Schedule:
    """How often a function is called.

    Attributes:
        warmup: calls before measuring.
        least: measured calls that are made in any case.
        further: calls that are made beyond these to tell a window, or a cache, that fills from a leak.
    """

    warmup: int
    least: int
    further: int = 0

    @property
    def every_run(self) -> bool:
        """Whether a leak must grow in every measured run, for there will be no more."""
        return not self.further


def schedule_of(warmup: int, runs: Runs, *, least: int = PERIOD) -> Schedule:
    """Return the schedule for the arguments of a check.

    Args:
        warmup: calls before measuring, 0 or more.
        runs: measured calls, 1 or more, or "auto".
        least: measured calls of "auto" if nothing grows.

    Raises:
        RunsError: ``warmup`` is negative, or ``runs`` is neither positive nor "auto".
    """
    if runs == AUTO and warmup >= 0:
        return Schedule(warmup, least, _FURTHER)
    if warmup < 0 or not isinstance(runs, int) or runs < 1:
        raise RunsError(
            f"warmup={warmup!r}, runs={runs!r}: warmup must be 0 or more and runs 1 or more, or 'auto'"
        )
    return Schedule(warmup, runs)
