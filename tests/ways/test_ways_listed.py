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
    ways = pd.DataFrame({"kind": ["sgd", "fused", "autocast", "float32"]})
    reading = SimpleNamespace(findings=[SimpleNamespace(kind=finding)], ways=ways)
    assert list(listed_ways(reading)["kind"]) == listed
