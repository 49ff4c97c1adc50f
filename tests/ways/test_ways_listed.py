"""The changes that people read, beside the findings."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from memwatch.kinds.findings import FindingKind
from memwatch.report.facts import listed_ways


@pytest.mark.parametrize(
    ("finding", "listed"),
    [
        (FindingKind.FUSED, ["autocast", "float32", "sgd"]),
        (FindingKind.AUTOCAST, ["fused", "autocast", "float32", "sgd"]),
        (FindingKind.FLOAT32, ["fused", "autocast", "float32", "sgd"]),
    ],
)
def test_a_way_is_left_out_only_if_a_finding_asks_for_the_same_change(finding, listed):
    """Two kinds have the same word for different changes."""
    ways = pd.DataFrame({"kind": ["sgd", "fused", "autocast", "float32"], "lines": ""})
    reading = SimpleNamespace(findings=[SimpleNamespace(kind=finding)], ways=ways)
    assert list(listed_ways(reading)["kind"]) == listed


def test_sparse_gradients_come_last_only_if_they_need_another_optimizer():
    lines = ["from torch.optim import SparseAdam", "table.sparse = True", ""]
    ways = pd.DataFrame({"kind": ["sparse_gradients", "sparse_gradients", "checkpoint"], "lines": lines})
    listed = listed_ways(SimpleNamespace(findings=[], ways=ways))
    assert list(listed["lines"]) == ["table.sparse = True", "", "from torch.optim import SparseAdam"]
