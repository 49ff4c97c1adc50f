"""What hands the recorder every op of a thread: one interface of a dispatch key and a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from memwatch.record.interception.kinds import OpKind

Handler: TypeAlias = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    name: str
    callbacks: tuple[Callable[..., Any], ...]
    """Functions that torch calls while dynamo may be evaluating frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def pause(self) -> bool:
        """Be out of the way of compiled code in this thread until `resume`; tell whether it was on."""

    def resume(self) -> None:
        """Be on again."""
