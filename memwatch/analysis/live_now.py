"""The storages that are alive after the last event of a program that may still run.

A live view asks for them often, so this module does without the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
    sums: dict[str, int] = {}
    for name, size in zip(category.of(alive), nbytes.tolist(), strict=True):
        sums[name] = sums.get(name, 0) + size
    rows = alive[np.argsort(-nbytes, kind="stable")[:count]]
    columns = (
        facts.allocations.nbytes[rows].tolist(), category.of(rows), facts.names(rows),
        facts.made_by.line.of(rows), facts.made_by.own_line.of(rows),
    )  # fmt: skip
    return LiveNow(
        time_ns=facts.since_start(curve.time_ns),
        live_bytes=curve.live_bytes,
        categories=sorted(sums.items(), key=lambda each: -each[1]),
        largest=[LiveStorage(*row) for row in zip(*columns, strict=True)],
        storages=len(alive),
    )
