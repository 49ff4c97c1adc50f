"""What may be asked of a plan, beside the program and the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from memwatch.errors import OptionError
from memwatch.planner.errors import OrderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.planner.graph import Graph
    from memwatch.planner.op import Name

OrderChoice: TypeAlias = "str | Callable[[Graph], Sequence[int]]"


def op_text(name: Name) -> str:
    """Name an op by what a graph calls it."""
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
        """Refuse what means nothing: `"no"` is true to Python, and `"a"` would fail in the middle of a search.

        Raises:
            OrderError: the order is none that is known, and no function.
            OptionError: another argument is of a wrong type or out of its range.
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
