"""Stand aside while torch.jit traces: the tracer writes down every op and size it sees, the recorder's included."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from memwatch._torch.jit import TRACERS, tracing_state
from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable


def is_tracing() -> bool:
    """Return True while dynamo or torch.jit writes down what runs: then nothing of ours may run."""
    return torch.compiler.is_dynamo_compiling() or tracing_state() is not None


class JitTracing:
    """Switch the recorders off for the time of `torch.jit.trace` and `torch.jit.trace_module`.

    Args:
        off: switches everything off that looks at ops or tensors.
        on: switches it on again.
    """

    def __init__(self, off: Callable[[], None], on: Callable[[], None]) -> None:
        self._off, self._on = off, on
        self._depth = 0
        self._thread = threading.get_ident()
        self._patches = Patches()

    def start(self) -> None:
        """Begin to see traces."""
        for place, name in TRACERS:
            self._patches.put(place, name, self._traced)

    def stop(self) -> None:
        """Undo `start`."""
        self._patches.take_off()

    def _traced(self, trace: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._patches or threading.get_ident() != self._thread:
            return trace(*args, **kwargs)
        self._depth += 1
        if self._depth == 1:
            self._off()
        try:
            return trace(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth:
                self._on()
