"""What a live view shows of a reading: the curve so far, and what is alive after the last flushed event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.reading import latest_iterations, live_now
from memwatch.words.places import own_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.latest_iterations import Iteration
    from memwatch.reading import Reading

POINTS: Final = 200
"""Stretches of equal time in the curve: a column of the terminal shows one or a few."""
_LARGEST: Final = 40
_ITERATIONS: Final = 20


@dataclass(frozen=True)
class Storage:
    """One storage that is alive now."""

    nbytes: int
    category: str
    name: str
    place: str


@dataclass(frozen=True)
class Figures:
    """What was recorded up to the last flush, of one device.

    Attributes:
        device: the device.
        others: further devices that have bytes.
        now_ns: when the last event was, since the block was entered.
        live_bytes: what is alive after it.
        peak_bytes: most live bytes so far.
        peak_ns: when they were first reached.
        curve_bytes: the most live bytes in each of some equal stretches of time up to now.
        categories: what is alive now by category, largest first.
        largest: the largest storages that are alive now, largest first.
        count: how many are alive now.
        iterations: the latest iterations, the last of which still runs.
    """

    device: str
    others: Sequence[str]
    now_ns: int
    live_bytes: int
    peak_bytes: int
    peak_ns: int
    curve_bytes: Sequence[int]
    categories: Sequence[tuple[str, int]]
    largest: Sequence[Storage]
    count: int
    iterations: Sequence[Iteration]


def figures_of(reading: Reading) -> Figures:
    """Return what a live view shows of a reading."""
    now, device = live_now(reading, _LARGEST), reading.device
    time_ns, live_bytes = now.time_ns, now.live_bytes
    return Figures(
        device=device,
        others=[name for name in reading.devices if name != device],
        now_ns=int(time_ns[-1]),
        live_bytes=int(live_bytes[-1]),
        peak_bytes=reading.peak_bytes,
        peak_ns=int(time_ns[live_bytes.argmax()]),
        curve_bytes=_highest(time_ns, live_bytes).tolist(),
        categories=now.categories,
        largest=[
            Storage(each.nbytes, each.category, each.name, own_place(each.line, each.own_line))
            for each in now.largest
        ],
        count=now.storages,
        iterations=latest_iterations(reading, _ITERATIONS),
    )


def _highest(time_ns: np.ndarray, live_bytes: np.ndarray) -> np.ndarray:
    """Return the most live bytes in each of `POINTS` stretches; one without an event has what was live at its start."""
    starts_ns = np.linspace(time_ns[0], time_ns[-1], POINTS, endpoint=False)
    before = np.maximum(np.searchsorted(time_ns, starts_ns, side="right") - 1, 0)
    return np.maximum.reduceat(live_bytes, before)
