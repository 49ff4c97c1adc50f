"""Note the errors of memwatch's code that runs within the program's calls, and let the calls go on."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from memwatch._torch.dynamo import leave_alone
from memwatch.errors import MemwatchError
from memwatch.signal_handlers import raised_by_handler

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Harmless:
    """Catch the errors of memwatch in a `with` block.

    Exceptions that belong to the program pass: its memory limit, an interrupt, an exit, and whatever one of its signal
    handlers raises.

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
        if not isinstance(error, Exception) or isinstance(error, MemwatchError) or raised_by_handler(error):
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
