"""Stand aside while torch.jit traces: the tracer writes down every op and size it sees, the recorder's included."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.jit import _trace as jit

if TYPE_CHECKING:
    from collections.abc import Callable

_TRACERS = ("_trace_impl", "trace_module")


class JitTracing:
    """Switch the recorders off for the time of `torch.jit.trace` and `torch.jit.trace_module`.

    Args:
        off: switches everything off that looks at ops or tensors.
        on: switches it on again.
    """

    def __init__(self, off: Callable[[], None], on: Callable[[], None]) -> None:
        self.count = 0
        self._off, self._on = off, on
        self._depth = 0
        self._originals: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Begin to see traces."""
        for place in (jit, torch.jit):
            for name in _TRACERS:
                original = getattr(place, name, None)
                if original is not None:
                    self._originals.append((place, name, original))
                    setattr(place, name, self._aside(original))

    def stop(self) -> None:
        """Undo `start`."""
        while self._originals:
            place, name, original = self._originals.pop()
            setattr(place, name, original)

    def _aside(self, trace: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(trace)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            if self._depth == 1:
                self.count += 1
                self._off()
            try:
                return trace(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._on()

        return traced
