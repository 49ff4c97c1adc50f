"""Calls of compiled functions: what was allocated or saved while one ran, when no op was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

COMPILED: Final = "a compiled function"
"""What stands where an op's name would."""


def compiled_call_at(capture: Capture, time_ns: IntArray) -> IntArray:
    """Return, for each time, the row of `compiled_calls` that was running; -1 if none was."""
    calls = capture.tables["compiled_calls"]  # outermost calls alone: no two overlap
    if not len(calls["start_ns"]):
        return np.full(len(time_ns), NONE, dtype=np.int64)
    row = np.searchsorted(calls["start_ns"], time_ns, side="right") - 1
    running = (row >= 0) & (time_ns <= calls["end_ns"][np.maximum(row, 0)])
    return np.where(running, row, NONE)
