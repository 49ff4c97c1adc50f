"""The kinds of ways that `fit` tries. The command line checks them before it imports torch."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from memwatch.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_STEPS: Final = 3
"""Optimizer steps of each run, for a program that makes as many. A guess."""


class Kind(Enum):
    """The kind of a change; the value is its key in `memwatch.words.fit` and `LINES`."""

    FOREACH = "foreach"
    FUSED = "fused"
    GRADIENTS = "gradients"
    STEP_IN_BACKWARD = "step_in_backward"
    CHECKPOINT = "checkpoint"
    CHAIN = "chain"
    POLICY = "policy"
    BACKEND = "backend"
    OFFLOAD = "offload"
    LOSS_IN_PARTS = "loss_in_parts"
    AUTOCAST = "autocast"

    @classmethod
    def chosen(cls, names: Collection[str] | None) -> set[Kind]:
        """Return the kinds that a user named; all of them for None.

        Raises:
            OptionError: the kind does not exist.
        """
        known = {kind.value: kind for kind in cls}
        for name in names or ():
            if name not in known:
                raise OptionError(f"fit has no way {name!r}; it has {', '.join(known)}")
        return set(cls) if names is None else {known[name] for name in names}

    @property
    def is_of_step(self) -> bool:
        """Whether it chooses how an optimizer computes its step; there can be one such choice."""
        return self in (Kind.FOREACH, Kind.FUSED)

    @property
    def is_setting(self) -> bool:
        """Whether it is one argument or one line that leaves the results as they are."""
        return self in (Kind.FOREACH, Kind.GRADIENTS)

    @property
    def is_of_optimizers(self) -> bool:
        """Whether the lines are about each optimizer."""
        return self.is_of_step or self in (Kind.GRADIENTS, Kind.STEP_IN_BACKWARD)
