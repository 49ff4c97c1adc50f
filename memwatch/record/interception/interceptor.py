"""What hands the recorder every op of a thread: one interface of a dispatch key and a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from memwatch.record.interception.kinds import OpKind

Handler: TypeAlias = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an op, given its kind and its arguments, and returns its result."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    @property
    def name(self) -> str:
        """``key`` or ``mode``."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of Python's that torch calls while dynamo may be evaluating frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def sees_this_thread(self) -> bool:
        """Return True in the thread of the block, and in a thread of autograd's that runs a backward for it."""

    def pause(self) -> bool:
        """Be out of the way of compiled code in this thread until `resume`; return whether it was on."""

    def resume(self) -> None:
        """Be on again."""
