"""A program that may still run, or was killed: what is alive, the latest iterations, and how fast memory grew.

A live view asks for this often, so this module does without the tables.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.iterations import events_between
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray


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


class Iteration(NamedTuple):
    """One iteration.

    Attributes:
        number: which one it is, from 0.
        duration_ns: how long it took.
        peak_bytes: most live bytes in it.
        has_ended: whether it has ended; otherwise its figures are those up to the last event.
    """

    number: int
    duration_ns: int
    peak_bytes: int
    has_ended: bool


def latest_iterations(facts: Facts, count: int) -> list[Iteration]:
    """Return the latest iterations, at most `count`, the earliest first. The list is empty until the first has ended.

    If a schedule or the program marks steps, the iterations are these steps. Otherwise they end with optimizer steps,
    with backwards, or with calls of the root module, as the glossary defines an iteration.
    """
    if facts.capture.rows("step_curve"):
        steps = facts.steps
        return [
            Iteration(step, int(steps.end_ns[step] - steps.start_ns[step]), int(steps.peak_bytes[step]), True)
            for step in range(max(len(steps) - count, 0), len(steps))
        ]
    curve = facts.curve
    ends_ns = np.sort(facts.kept_across.ends_ns)
    start_ns = int(facts.capture.meta.get("start_ns", curve.time_ns[0]))
    bounds_ns = [start_ns, *ends_ns.tolist()]
    if len(ends_ns) and curve.time_ns[-1] > bounds_ns[-1]:
        bounds_ns.append(int(curve.time_ns[-1]))
    found = []
    for number, (begun_ns, ended_ns) in list(enumerate(itertools.pairwise(bounds_ns)))[-count:]:
        first, after = events_between(curve, begun_ns, ended_ns)
        peak_bytes = int(curve.live_bytes[first:after].max())
        found.append(Iteration(number, ended_ns - begun_ns, peak_bytes, number < len(ends_ns)))
    return found


_LAST_NS: Final = 10_000_000_000
"""Nanoseconds before the end whose growth the note describes. A guess."""


def last_seconds(facts: Facts) -> str:
    """Return a sentence about the growth in the last seconds that were recorded; empty where no samples are."""
    process, curve = facts.capture.tables["process"], facts.curve
    if len(process["time_ns"]) < 2:
        return ""
    end_ns = max(int(process["time_ns"][-1]), int(curve.time_ns[-1]))
    first = min(int(np.searchsorted(process["time_ns"], end_ns - _LAST_NS)), len(process["time_ns"]) - 2)
    since_ns, rss_bytes = int(process["time_ns"][first]), process["rss_bytes"]
    before = max(int(np.searchsorted(curve.time_ns, since_ns, side="right")) - 1, 0)
    live_bytes = int(curve.live_bytes[-1]) - int(curve.live_bytes[before])
    return (
        f"In the last {(end_ns - since_ns) / 1e9:.1f} s that were recorded live bytes on {facts.device} "
        f"{_changed(live_bytes)} to {format_bytes(int(curve.live_bytes[-1]))} and the memory of the process "
        f"{_changed(int(rss_bytes[-1]) - int(rss_bytes[first]))} to {format_bytes(int(rss_bytes[-1]))}; "
        f"the machine had {format_bytes(int(process['available_bytes'][-1]))} left."
    )


def _changed(nbytes: int) -> str:
    return f"{'grew' if nbytes >= 0 else 'fell'} by {format_bytes(abs(nbytes))}"
