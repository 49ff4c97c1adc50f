"""Check the arguments of `plan_graph`: the options, the budget, and the time limit of the search.

The search of a small program ends long before the limit, so its plan depends on the seed only. The limit counts the CPU
time of this process. On a shared machine, the process often waits for the CPU. If the limit counted wall-clock time, a
search would find a worse plan there than on an idle machine.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from memwatch.errors import OptionError
from memwatch.planner.graph import OrderError
from memwatch.sizes import SizeError, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.graph import Graph, Name

OrderChoice: TypeAlias = "str | Callable[[Graph], Sequence[int]]"


def op_text(name: Name) -> str:
    """Return the name of an op for messages: its name in the graph."""
    return name if isinstance(name, str) and " " in name else f"op {name!r}"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The arguments of `plan_graph` other than the graph and the budget."""

    order: OrderChoice = "auto"
    recompute: bool = True
    offload: bool = False
    bandwidth: float | None = None
    time_limit_s: float = 10.0
    seed: int = 0
    movable: frozenset[Name] | None = None
    name_of: Callable[[Name], str] = field(default=op_text, compare=False)

    def check(self) -> None:
        """Raise an error for an invalid value. Without this check, `recompute="no"` would be true in Python.

        Raises:
            OrderError: the order is unknown and not a function.
            OptionError: another argument has a wrong type or is out of its range.
        """
        if not (callable(self.order) or self.order in ("auto", "program")):
            raise OrderError(
                f"order={self.order!r} is unknown; use 'auto', 'program' or a function of the graph"
            )
        check_switch("recompute", self.recompute)
        check_switch("offload", self.offload)
        if not (_is_number(self.time_limit_s) and self.time_limit_s > 0 and math.isfinite(self.time_limit_s)):
            raise OptionError(
                f"time_limit_s={self.time_limit_s!r} leaves no time; use a positive number of seconds"
            )
        if not (isinstance(self.seed, int) and _is_number(self.seed) and self.seed >= 0):
            raise OptionError(f"seed={self.seed!r} seeds nothing; use a whole number, zero or more")


def check_switch(name: str, value: object) -> None:
    """Raise `OptionError` unless the value of an option is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r} is neither on nor off; use True or False")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_DECIMAL: Final = re.compile(r"0?\.\d+")
"""The text of a number below one without a unit."""


def parse_budget(budget: int | float | str, program_increase_bytes: int) -> int:
    """Return a budget in bytes.

    Args:
        budget: bytes, text such as ``"512 MiB"``, or ``"60%"`` of the program's own peak increase.
        program_increase_bytes: that peak increase (bytes).

    Returns:
        The peak increase that a plan may have (bytes), rounded down.

    Raises:
        SizeError: the text is neither a size nor a percentage, or the number is negative, not finite, or a
            share such as 0.5, which would be no byte.
    """
    if isinstance(budget, float) and 0 <= budget < 1:
        raise _less_than_a_byte(budget, budget)
    if isinstance(budget, str) and _DECIMAL.fullmatch(
        budget.strip()
    ):  # the command line passes numbers as text
        raise _less_than_a_byte(budget, float(budget))
    if not (isinstance(budget, str) and budget.strip().endswith("%")):
        return parse_bytes(budget)
    digits = budget.strip()[:-1].strip()
    try:
        share = float(digits)
    except ValueError:
        raise SizeError(f"{budget!r} is not a budget; write a percentage such as '60%'") from None
    if not 0 <= share < float("inf"):
        raise SizeError(f"{budget!r} is not a budget; a percentage is zero or more")
    # whole percentages are computed in integers, so that no byte is lost to binary fractions
    return (
        program_increase_bytes * int(share) // 100
        if share.is_integer()
        else int(program_increase_bytes * share / 100)
    )


def _less_than_a_byte(budget: float | str, share_ratio: float) -> SizeError:
    percentage = f"{share_ratio * 100:g}%"
    return SizeError(
        f"{budget!r} is less than a byte; write {percentage!r} for that share of the program's own"
    )


_PATIENCE: Final = 3.0
"""Wall-clock time after which a search ends in any case, as a multiple of its limit. A guess."""


def working_time(
    wall_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
) -> Callable[[], float]:
    """Return a function that returns the working time of the process since now (seconds).

    Working time is CPU time within two limits. It is at most the wall-clock time, because with many threads CPU time
    runs faster. It is at least the wall-clock time divided by `_PATIENCE`.

    Args:
        wall_s: returns the wall-clock time (seconds).
        cpu_s: returns the CPU time of the process (seconds).
    """
    start_wall_s, start_cpu_s = wall_s(), cpu_s()

    def now_s() -> float:
        passed_s = wall_s() - start_wall_s
        return max(min(cpu_s() - start_cpu_s, passed_s), passed_s / _PATIENCE)

    return now_s


@dataclass(frozen=True, slots=True)
class Clock:
    """A deadline, and the function that returns the time. All searches of one call of the planner share it.

    Attributes:
        deadline_s: time at which the search has to end (seconds, on the scale of `now_s`).
        now_s: returns the current time (seconds).
    """

    deadline_s: float
    now_s: Callable[[], float]

    @classmethod
    def of(cls, limit_s: float, now_s: Callable[[], float] | None = None) -> Clock:
        """Return a clock that is over after `limit_s` seconds of work.

        Args:
            limit_s: the limit (seconds).
            now_s: returns the time (seconds). Tests pass their own function, so that no test waits.
        """
        now_s = now_s or working_time()
        return cls(now_s() + limit_s, now_s)

    def is_over(self) -> bool:
        """Return True after the deadline."""
        return self.now_s() >= self.deadline_s

    def left_s(self) -> float:
        """Return the seconds up to the deadline; 0 after it."""
        return max(0.0, self.deadline_s - self.now_s())

    def share(self, ratio: float) -> Clock:
        """Return a clock for one part of the search, with this share of the time that is left."""
        return Clock(self.now_s() + ratio * self.left_s(), self.now_s)
