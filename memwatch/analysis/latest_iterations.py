"""The latest iterations of a program that may still run: how long each took, and its peak."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.marked_steps import events_between

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts


class Iteration(NamedTuple):
    """One iteration.

    Attributes:
        number: which one it is, from 0.
        duration_ns: how long it took.
        peak_bytes: most live bytes in it.
        has_ended: whether it has; what has not is the stretch up to the last event.
    """

    number: int
    duration_ns: int
    peak_bytes: int
    has_ended: bool


def latest_iterations(facts: Facts, count: int) -> list[Iteration]:
    """Return the latest iterations, at most `count`, the earliest first.

    The result is empty until the first has ended.

    They come from the table `steps` if the program or a schedule marks steps. Otherwise they end with optimizer
    steps, with backwards, or with calls of the root module, as the glossary defines an iteration.
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
