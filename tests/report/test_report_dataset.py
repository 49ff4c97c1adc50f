"""Captures of many ranks as one dataset of Parquet files."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
import torch

import memwatch
from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.main import main


@pytest.fixture
def captures(tmp_path, monkeypatch):
    """Record a little in two ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with memwatch.profile(tmp_path / f"a.rank{rank}.memwatch"):
            torch.ones(100 * (1 + rank)).exp()
    return sorted(tmp_path.glob("*.memwatch"))


def test_each_rank_adds_its_tables(captures, tmp_path):
    """A reader takes all ranks or one rank. Without -f a capture is not written twice."""
    pytest.importorskip("pyarrow")
    words = ["parquet", "-o", str(tmp_path / "dataset")]
    for capture in captures:
        assert main(["transform", str(capture), *words]) == 0
    for name in DERIVED_BY_NAME:
        whole = pd.read_parquet(tmp_path / "dataset" / name)
        readings = [memwatch.load(capture) for capture in captures]
        assert len(whole) == sum(len(getattr(reading, name)) for reading in readings)
        own = pd.read_parquet(tmp_path / "dataset" / name, filters=[("rank", "==", 1)])
        expected = getattr(readings[1], name)
        assert own[list(expected.columns)].to_numpy().tolist() == expected.to_numpy().tolist()
    assert main(["transform", str(captures[0]), *words]) == 1
    assert main(["transform", "-f", str(captures[0]), *words]) == 0


def test_without_pyarrow_one_line_says_what_to_install(captures, capsys, monkeypatch):
    """The package is needed for this format alone."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["transform", str(captures[0]), "parquet"]) == 1
    assert "pip install 'memwatch[parquet]'" in capsys.readouterr().err
