"""The interface of interceptors, which pass every op of a thread to the recorder, and the probe of the free key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from memwatch._torch.dispatch import FREE_KEY
from memwatch._torch.modes import disable_torch_dispatch, disable_torch_function
from memwatch.record.interception.kinds import OpKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator


Handler: TypeAlias = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]
"""A function that runs an op and returns its result. It gets the op's kind and arguments."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    @property
    def name(self) -> str:
        """``key`` or ``mode``."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The Python functions that torch may call while dynamo evaluates frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def sees_this_thread(self) -> bool:
        """Return True in the block's thread and in autograd threads that run a backward for it."""

    def pause(self) -> bool:
        """Switch off in this thread until `resume`, for compiled code. Return whether it was on."""

    def resume(self) -> None:
        """Switch on again."""


_EXPECTED: Final = 6
"""The sum that the test op must give."""


def passes(start: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Return True if ops have the right result while an interceptor is on."""
    if FREE_KEY is None:
        return False
    try:
        with _unseen_by_the_program():
            start()
            try:
                total = (torch.ones(3, requires_grad=True) * 2).sum()
                total.backward()
            finally:
                stop()
            return total.item() == _EXPECTED
    except (RuntimeError, AttributeError, TypeError) as error:
        pass_on(error)
        return False


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run memwatch's own ops below every mode of the program, with autograd as usual."""
    with disable_torch_function(), disable_torch_dispatch(), torch.inference_mode(False), torch.enable_grad():
        yield
