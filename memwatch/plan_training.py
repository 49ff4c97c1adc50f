"""The functions that train with a plan. `memwatch/__init__.py` registers them, and plans find them here.

A plan belongs to the planner, which imports neither torch nor the packages above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Turns(Protocol):
    """Gives the checkpointed regions of a training step their contexts, each in its turn."""

    @property
    def choice(self) -> Any:
        """The saved tensors; None until regions are known."""

    def contexts(
        self, *, strict: bool = False
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return the contexts of the region that begins now; `strict` makes errors of warnings about the budget."""


_turns_of: Callable[[Any], Turns] | None = None


def train_by(turns_of: Callable[[Any], Turns]) -> None:
    """Set the function that returns the turns of a plan."""
    global _turns_of  # noqa: PLW0603  # one process has one
    _turns_of = turns_of


def turns_of(plan: Any) -> Turns:
    """Return the turns of a plan."""
    assert _turns_of is not None, "memwatch/__init__.py sets it"
    return _turns_of(plan)
