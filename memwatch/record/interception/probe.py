"""Whether the dispatch key works with the torch that is installed: run ops behind it and check their result."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import torch

from memwatch._torch.dispatch import FREE_KEY
from memwatch._torch.modes import disable_torch_dispatch
from memwatch._torch.overrides import disable_torch_function
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_EXPECTED: Final = 6


def passes(start: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Return True if ops that run while an interceptor is on have the right result."""
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
    """Run ops of memwatch's own below every mode that the program has on, with autograd as usual."""
    with disable_torch_function(), disable_torch_dispatch(), torch.inference_mode(False), torch.enable_grad():
        yield
