"""The recorded runs of torch's own code around an op."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from memwatch.analysis.holders.lasting import TorchRuns


class _Counted(np.ndarray):
    """The first ops of some runs. It counts how often they are searched."""

    searches = 0

    def __le__(self, op):
        _Counted.searches += 1
        return np.asarray(self) <= op


def test_the_run_around_an_op_is_searched_once():
    """Thousands of tensors have holders at one op."""
    start = np.array([2, 5], dtype=np.int64).view(_Counted)
    runs = {"start_op": start, "end_op": np.array([9, 7], dtype=np.int64)}
    torch_runs = TorchRuns(SimpleNamespace(tables={"torch_runs": runs}))
    found = [torch_runs.around(6) for _ in range(3)]
    assert found == [range(5, 7)] * 3
    assert torch_runs.around(1) is None
    assert torch_runs.around(1) is None
    assert _Counted.searches == 2
