"""Whether an interceptor works with the torch that is installed: run ops under it and compare their result."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROBED: Final = 6


def probe(start: Callable[[], None], stop: Callable[[], None]) -> float:
    """Run ops while an interceptor is on, and give their result, which is `PROBED`."""
    with _unseen_by_the_program():
        start()
        try:
            total = (torch.ones(3, requires_grad=True) * 2).sum()
            total.backward()
        finally:
            stop()
        return total.item()


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run ops of memwatch's own below every mode that the program has on, with autograd as usual."""
    below = (torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch())
    with below[0], below[1], torch.inference_mode(False), torch.enable_grad():
        yield
