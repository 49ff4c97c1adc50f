"""The storages that are alive after the last event of a program that may still run.

A live view asks for them often, so this module does without the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.marked_steps import events_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


class LiveStorage(NamedTuple):
    """One storage that is alive, with the words of its row in the table `storages`."""

    nbytes: int
    category: str
    name: str
    line: str
    own_line: str


class LiveNow(NamedTuple):
    """The curve up to the last event, and the storages that are alive after it.

    Attributes:
        time_ns: time of each event, since the block was entered.
        live_bytes: live bytes after each event.
        categories: bytes that are alive now by category, largest first.
        largest: the largest storages that are alive now, largest first.
        storages: number of storages that are alive now.
    """

    time_ns: IntArray
    live_bytes: IntArray
    categories: Sequence[tuple[str, int]]
    largest: Sequence[LiveStorage]
    storages: int


def live_now(facts: Facts, count: int) -> LiveNow:
    """Return the curve so far and the storages that are alive after its last event.

    Args:
        facts: the facts of the capture.
        count: how many of the largest storages get a name and a line, not only their bytes.
    """
    curve = facts.curve
    alive = np.flatnonzero(facts.alive_at(len(curve.time_ns) - 1))
    nbytes, category = facts.allocations.nbytes[alive], facts.categories.category
    rows = alive[np.argsort(-nbytes, kind="stable")[:count]]
    columns = (
        facts.allocations.nbytes[rows].tolist(), category.of(rows), facts.names(rows),
        facts.made_by.line.of(rows), facts.made_by.own_line.of(rows),
    )  # fmt: skip
    return LiveNow(
        time_ns=facts.since_start(curve.time_ns),
        live_bytes=curve.live_bytes,
        categories=_by_category(facts, alive),
        largest=[LiveStorage(*row) for row in zip(*columns, strict=True)],
        storages=len(alive),
    )


class StepsPeak(NamedTuple):
    """The highest peak of some steps.

    Attributes:
        steps: how many steps they are.
        peak_bytes: most live bytes in them.
        categories: what was alive at that instant by category, largest first; empty for a step that is not recorded.
    """

    steps: int
    peak_bytes: int
    categories: Sequence[tuple[str, int]]


def peak_of_steps(facts: Facts, first: int) -> StepsPeak | None:
    """Return the highest peak of the marked steps from one on; None before the first mark."""
    steps, curve = facts.steps, facts.curve
    if first >= len(steps):
        return None
    highest = first + int(steps.peak_bytes[first:].argmax())
    begin, after = events_between(curve, int(steps.start_ns[highest]), int(steps.end_ns[highest]))
    event, peak_bytes = begin + int(curve.live_bytes[begin:after].argmax()), int(steps.peak_bytes[highest])
    is_seen = bool(steps.recorded[highest]) and int(curve.live_bytes[event]) == peak_bytes
    categories = _by_category(facts, np.flatnonzero(facts.alive_at(event))) if is_seen else []
    return StepsPeak(len(steps) - first, peak_bytes, categories)


def _by_category(facts: Facts, rows: IntArray) -> list[tuple[str, int]]:
    """Return the bytes of some allocations by category, largest first."""
    sums: dict[str, int] = {}
    categories = facts.categories.category.of(rows)
    for name, size in zip(categories, facts.allocations.nbytes[rows].tolist(), strict=True):
        sums[name] = sums.get(name, 0) + size
    return sorted(sums.items(), key=lambda each: -each[1])
