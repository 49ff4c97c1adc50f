"""The uses that a recording cannot show: those after it was cut off, and those by other processes.

An exception, a memory limit or a kill may end a recording in the middle of the program's work. Memory that was alive
then has an unknown last use: the program may have been about to read it. So nothing says that such memory is not used
any more, or that it is never used.

A process that `fork` or `multiprocessing` starts gets a copy of the memory of this one, or of its arguments. DataLoader
workers read the data set in this way. So the start of a process may be a use of memory that was alive then. Memory that
most iterations make anew is no data set: a start is no use of it. A forked process cannot read an accelerator's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.capture.schema import NONE
from memwatch.words.processes import GAVE_WAY_KIND, PROGRAM_FAILED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray


class CutOff(NamedTuple):
    """The end of a recording that ended before the program's work.

    Attributes:
        error: the class of the exception that ended it; "" if no exception did, or if its class is not known.
        iterations: how many iterations had ended; None if the program has no sign of iterations.
    """

    error: str
    iterations: int | None


def cut_off_ns(capture: Capture) -> int | None:
    """Return when the last op of a recording that was cut off started, in unix time; None for a whole recording.

    The exception that ended the recorded code frees memory while it passes through the calls, after the last op.
    """
    kinds = {note.kind for note in capture.notes}
    if capture.meta.get("complete", True) and kinds.isdisjoint((PROGRAM_FAILED, GAVE_WAY_KIND)):
        return None
    return int(capture.tables["ops"]["start_ns"].max(initial=0))


def recorded_ends_ns(capture: Capture) -> IntArray:
    """Return when steps and marked iterations ended. Each was recorded at its end, so it was whole."""
    if not capture.rows("step_curve"):
        return capture.tables["steps"]["time_ns"]
    ends_ns = np.unique(capture.tables["step_curve"]["end_ns"])
    # the end of the block also ends a step in the curve; a process that was killed did not reach it
    return ends_ns[:-1] if capture.meta.get("complete", True) else ends_ns


def ends_known(allocations: Allocations, cut_ns: int | None) -> NDArray[np.bool_]:
    """Return which allocations had ended before the recording was cut off; all of them in a whole recording."""
    if cut_ns is None:
        return np.ones(len(allocations), dtype=bool)
    known: NDArray[np.bool_] = (allocations.death_ns != NONE) & (allocations.death_ns < cut_ns)
    return known


class ProcessStarts:
    """The times at which processes started that may have read this process's memory.

    Args:
        capture: the recorded tables.
    """

    def __init__(self, capture: Capture) -> None:
        times = np.array(capture.meta.get("processes_started_ns", []), dtype=np.int64).reshape(-1, 2)
        self._first_ns, self._last_ns = np.sort(times, axis=0).T

    def __len__(self) -> int:
        return len(self._first_ns)

    def are_within(self, from_ns: IntArray, until_ns: IntArray) -> NDArray[np.bool_]:
        """Return in which stretches of time a process started."""
        begun = np.searchsorted(self._first_ns, until_ns, side="right")
        within: NDArray[np.bool_] = begun > np.searchsorted(self._last_ns, from_ns, side="left")
        return within
