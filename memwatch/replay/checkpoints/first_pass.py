"""The first pass of checkpointed regions, measured: what a plan claims of it, beside what it takes.

A pass is measured from its first region to the end of the backward that runs its regions again. What was made before it
is in neither figure.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

from memwatch._torch.engine import call_after_backwards, is_in_backward
from memwatch.planner.errors import BudgetError
from memwatch.replay.measure import AllocatorWindow, can_measure
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.replay.checkpoints.saving import Around


class _Token:
    """Lives as long as autograd keeps what a pass saved."""


class FirstPass:
    """Measures one pass, and says if it takes more than a plan claims.

    Args:
        what: who claims, as the message begins.
        device: device whose bytes count.
        undo: called before the error.

    Attributes:
        is_over: whether a pass was measured, or none needs to be.
        strict: whether it is an error to take more; if not, it is a warning.
    """

    def __init__(self, what: str, device: str, undo: Callable[[], None] = lambda: None) -> None:
        self.is_over = self.strict = False
        self._what, self._device, self._undo = what, device, undo
        self._window: AllocatorWindow | None = None
        self._thread = 0
        self._claim_bytes = 0
        self._token: weakref.ref[_Token] | None = None
        self._has_run_again = False
        self._end_calls: Callable[[], None] = lambda: None

    def region(self, claim_bytes: int) -> list[Around]:
        """Note that a region begins in forward; return what to enter when it runs again.

        Args:
            claim_bytes: the most bytes that the plan says are held of what the pass makes.
        """
        if self.is_over:
            return []
        token = None if self._token is None else self._token()
        if self._window is None:
            if not can_measure():
                return []
            token = _Token()
            self._begin(token, claim_bytes)
        return [] if token is None else [functools.partial(self._running_again, token)]

    def _begin(self, token: _Token, claim_bytes: int) -> None:
        self._token = weakref.ref(token, lambda _: self._dropped())
        self._claim_bytes, self._has_run_again = claim_bytes, False
        self._thread = threading.get_ident()
        self._window = AllocatorWindow(self._device)
        self._window.mark("pass")
        self._end_calls = call_after_backwards(self._backward_returned)

    @contextlib.contextmanager
    def _running_again(self, token: _Token) -> Iterator[None]:
        self._has_run_again = True
        yield

    def _dropped(self) -> None:
        """End the measurement of a pass of which no backward will come, as after an exception of the program's."""
        if not self._has_run_again and not is_in_backward():
            self._stop()

    def _backward_returned(self) -> None:
        if self._has_run_again and self._window is not None:
            taken_bytes = self._stop()
            if taken_bytes is not None:
                self.is_over = True
                self._judge(taken_bytes)
        elif self._token is None or self._token() is None:
            self._stop()

    def _stop(self) -> int | None:
        """Return the most bytes that the pass held; None in a thread that cannot tell."""
        if self._window is None or self._thread != threading.get_ident():
            return None
        window, self._window = self._window, None
        self._end_calls()
        return max((stretch.peak_bytes - stretch.start_bytes for stretch in window.stop()), default=None)

    def _judge(self, taken_bytes: int) -> None:
        undo, self._undo = self._undo, lambda: None
        if taken_bytes <= self._claim_bytes:
            return
        claim, taken = format_bytes(self._claim_bytes), format_bytes(taken_bytes)
        message = (
            f"{self._what}: from the first checkpointed region to the end of the backward the plan claims {claim}, "
            f"and the first such pass took {taken}"
        )
        if self.strict:
            undo()
            raise BudgetError(message, None, taken_bytes, advice=_ADVICE)
        warnings.warn(f"{message}; {_ADVICE}", stacklevel=4)


_ADVICE = "record a step as large as this one and plan again"
