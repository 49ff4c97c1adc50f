"""The options of the torch.compile backend."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import OptionError
from memwatch.planner.request import PlanRequest, check_switch, parse_budget

if TYPE_CHECKING:
    from collections.abc import Mapping


_INNER: Final = ("eager", "inductor")


@dataclass(frozen=True)
class BackendOptions:
    """The options of ``torch.compile(..., backend="memwatch", options={...})``.

    Attributes:
        budget: the peak increase that all graphs of the compiled callable may have together, from the first forward
            to the end of the backward. Write bytes, ``"512 MiB"``, or ``"60%"``. The share is of the peak of eager
            PyTorch, which memwatch measures in the first step. None: the lowest peak that a new order alone can reach.
        order: ``"auto"`` or ``"program"``.
        recompute: whether ops may be computed again.
        offload: whether buffers may be moved out and back. They go to pinned host memory on an accelerator, and to a
            temporary file on the CPU.
        inner: how the planned graphs run. ``"eager"`` calls the kernels of eager PyTorch, so results are equal bit
            for bit. ``"inductor"`` fuses ops, so results are close. It saves and recomputes the planned tensors, and
            the measured peak keeps the budget.
        time_limit_s: when to stop searching (seconds of work).
        seed: seed of the search.
        strict: whether a budget that cannot be kept is an error. If not, memwatch warns and uses the lowest plan.
    """

    budget: int | float | str | None = None
    order: str = "auto"
    recompute: bool = True
    offload: bool = False
    inner: str = "eager"
    time_limit_s: float = 10.0
    seed: int = 0
    strict: bool = False

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options."""
        return [entry.name for entry in fields(cls)]

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """Return the options that a user gave, checked.

        Raises:
            OptionError: an option does not exist, or its value is invalid.
            OrderError: the order is unknown.
            SizeError: the budget cannot be read.
        """
        for name in options or {}:
            if name not in cls.names():
                raise OptionError(
                    f"the backend memwatch has no option {name!r}; it has {', '.join(cls.names())}"
                )
        found = cls(**(options or {}))
        # check now, because an error in the middle of a compilation is harder to read
        PlanRequest(
            found.order, found.recompute, found.offload, time_limit_s=found.time_limit_s, seed=found.seed
        ).check()
        check_switch("strict", found.strict)
        found._check_inner()
        if found.budget is not None:
            parse_budget(found.budget, 0)
        return found

    def _check_inner(self) -> None:
        if self.inner not in _INNER:
            raise OptionError(f"inner={self.inner!r} is unknown; use 'eager' or 'inductor'")
