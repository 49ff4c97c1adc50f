"""A way: a change of the program, with the peak that it would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["simulated", "estimated"]


@dataclass(frozen=True)
class Way:
    """A change of the program, with its peak.

    Attributes:
        kind: the kind of change, such as `checkpoint` or `foreach`; two kinds are joined by ` + `.
        text: the change in a few words.
        peak_bytes: the most live bytes with it.
        time_ratio: duration of the ops with it, relative to that without; NaN if unknown.
        basis: `simulated` (the recorded allocations and frees, with the change) or `estimated` (the recording does
            not show the allocations that the changed program makes instead).
        decision: the decision that you have to make; "" if the results stay the same in every bit.
        lines: the lines of Python that make the change.
        modules: the names of the modules that it changes in their model, joined by `, `.
    """

    kind: str
    text: str
    peak_bytes: int
    time_ratio: float
    basis: Basis
    decision: str
    lines: str
    modules: str
