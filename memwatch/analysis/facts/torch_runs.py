"""The recorded runs of torch's own code. The variables of the program do not change during a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memwatch.capture import Capture


class TorchRuns:
    """The rows of the recorded table `torch_runs`: each is a backward, a part of one, or the step of an optimizer."""

    def __init__(self, capture: Capture) -> None:
        runs = capture.tables["torch_runs"]
        self._start_op, self._end_op = runs["start_op"], runs["end_op"]

    def around(self, op: int) -> range | None:
        """Return the ops of the innermost recorded run that an op belongs to, or None."""
        rows = np.flatnonzero((self._start_op <= op) & (op < self._end_op))
        if not len(rows):
            return None
        row = rows[np.argmax(self._start_op[rows])]
        return range(int(self._start_op[row]), int(self._end_op[row]))
