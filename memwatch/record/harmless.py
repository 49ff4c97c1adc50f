"""What goes wrong in code of ours that runs within a call of the program's: it is noted, and the call goes on."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from memwatch._torch.dynamo import leave_alone
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Harmless:
    """Catch what is raised in a `with` block, unless the program asked for it: its limit, an interrupt, an exit.

    Args:
        could_not_record: called with the name of what is being noted, and the error.
        what: that name, as a reader would call it.
    """

    def __init__(self, could_not_record: Callable[[str, Exception], None], what: str) -> None:
        self._could_not_record, self._what = could_not_record, what

    def __enter__(self) -> None:
        """Do nothing; blocks may lie in one another, also in several threads."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note an error, and go on after the block."""
        if not isinstance(error, Exception) or isinstance(error, MemwatchError):
            return False
        try:
            self._could_not_record(self._what, error)
        except MemoryError:  # nothing can be noted now
            return True
        return True


def weakly(could_not_record: Callable[[str, Exception], None]) -> Callable[[str, Exception], None]:
    """Return a function that calls a method and does not keep its object alive: torch may keep who calls it."""
    reference = weakref.WeakMethod(could_not_record)

    def note(what: str, error: Exception) -> None:
        method = reference()
        if method is not None:
            method(what, error)

    return note


for _function in (Harmless.__enter__, Harmless.__exit__):  # they may run where dynamo evaluates frames
    leave_alone(_function.__code__)
