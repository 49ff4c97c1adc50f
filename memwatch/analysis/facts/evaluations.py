"""Loops that only evaluate, within a program that trains: their iterations are the calls of the model.

Between two ends of the program's iterations a model may be called many times without gradients: a validation, a
prediction, a rollout. What outlives one of these calls and is used after the next, or outlives two, is kept by the
program, as a list of predictions is. Calls that most iterations have, as of a teacher or a target network, belong to
these iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import FORWARD, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_FEWEST_CALLS: Final = 3


class Evaluations(NamedTuple):
    """Calls of a model in loops that evaluate, in order, but for the first of each loop.

    Attributes:
        ends_ns: when the call before it ends, in unix time.
        starts_ns: when it starts.
        loops_ns: when each loop starts, and then when it ends, in order.
        last_ns: when the last two calls of each loop start, and then when the loop ends, in order.
    """

    ends_ns: IntArray
    starts_ns: IntArray
    loops_ns: IntArray
    last_ns: IntArray

    def are_made_last(self, times_ns: IntArray) -> NDArray[np.bool_]:
        """Return which times lie in the last two calls of a loop: no later ones tell what is kept of these."""
        return _are_within(self.last_ns, times_ns)


def evaluations(capture: Capture, ends_ns: IntArray) -> Evaluations:
    """Return the loops that evaluate between the ends of iterations."""
    calls, ops = capture.tables["calls"], capture.tables["ops"]
    rows = np.flatnonzero((calls["depth"] == 0) & (calls["start_op"] < calls["end_op"]))
    rows = rows[np.argsort(calls["start_op"][rows], kind="stable")]
    first_op = calls["start_op"][rows]
    rows = rows[(ops["phase"][first_op] == FORWARD) & (ops["sequence"][first_op] == NONE)]
    module = calls["module"][rows]
    start_ns, end_ns = ops["start_ns"][calls["start_op"][rows]], ops["end_ns"][calls["end_op"][rows] - 1]
    between = np.searchsorted(np.sort(ends_ns), start_ns)
    ends, starts, loops, last_calls = [], [], [], []
    for number in np.unique(between):
        here = np.flatnonzero(between == number)
        model = module[here[-1]]
        here = here[module[here] == model]
        is_of_most = 2 * len(np.unique(between[module == model])) > len(ends_ns) + 1
        if len(here) >= _FEWEST_CALLS and not is_of_most:
            ends.append(end_ns[here[:-1]])
            starts.append(start_ns[here[1:]])
            loops.append([start_ns[here[0]], end_ns[here[-1]] + 1])
            last_calls.append([start_ns[here[-2]], end_ns[here[-1]] + 1])
    none = np.zeros(0, dtype=np.int64)
    return Evaluations(*(np.concatenate([none, *each]) for each in (ends, starts, loops, last_calls)))


def kept_in_evaluations(
    found: Evaluations, allocations: Allocations, last_use_ns: IntArray
) -> NDArray[np.bool_]:
    """Return what is made in a loop that evaluates and kept in it.

    Args:
        found: the loops.
        allocations: every piece of memory.
        last_use_ns: when each was used last, 0 for never.
    """
    forever = np.iinfo(np.int64).max
    death_ns = np.where(allocations.death_ns == NONE, forever, allocations.death_ns)
    first = np.searchsorted(found.ends_ns, allocations.birth_ns, side="right")
    count = np.searchsorted(found.starts_ns, death_ns) - first
    is_used_later = last_use_ns >= np.append(found.starts_ns, forever)[first]
    kept: NDArray[np.bool_] = (count > 1) | ((count > 0) & is_used_later)
    return kept & _are_within(found.loops_ns, allocations.birth_ns)


def _are_within(stretches_ns: IntArray, times_ns: IntArray) -> NDArray[np.bool_]:
    """Return which times lie in a stretch, given when each starts and ends, in order."""
    within: NDArray[np.bool_] = np.searchsorted(stretches_ns, times_ns, side="right") % 2 == 1
    return within
