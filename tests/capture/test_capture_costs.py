"""The cost of a long run for its readers: few bytes per op in the file, and tables only on demand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import memwatch
from memwatch.analysis.facts.coded import Grouped
from memwatch.report.stats import stats

MOST_BYTES = 60
"""Bytes of the file for an op, the promise."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A training loop of some thousand ops, in a file."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("long") / "loop.memwatch"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with memwatch.profile(path):
        for _ in range(120):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    return path


def test_an_op_takes_few_bytes_of_the_file(path):
    """The columns of many rows lie together: neighbours differ little."""
    assert path.stat().st_size <= MOST_BYTES * len(memwatch.load(path).ops)


@pytest.mark.parametrize("table", ["ops", "storages", "timeline"])
def test_a_part_of_a_table_is_that_part_of_the_whole(path, table):
    """Single columns and rows have the values, the order and the types of the whole table."""
    reading = memwatch.load(path)
    whole = getattr(memwatch.load(path), table)
    for column in whole.columns:
        assert reading.part(table, [column]).equals(whole[[column]])
        assert reading.part(table, [column], [7, 3]).equals(whole.loc[[7, 3], [column]])
    assert reading.part(table, list(whole.columns)).equals(whole)
    assert len(reading.part(table, ())) == len(whole)


def test_texts_for_people_make_no_whole_table(path, tmp_path):
    """The summary, `stats` and the page read only the columns that they show. A long run has gigabytes of others."""
    reading = memwatch.load(path)
    reading.summary()
    stats(reading)
    reading.report(tmp_path / "page.html")
    assert not {"ops", "storages", "timeline", "uses"} & vars(reading._tables).keys()


@pytest.mark.parametrize("of", [np.int32, np.int64])
def test_a_search_in_a_sorted_column_copies_no_column(of):
    """The search for ways makes tens of thousands of such searches, in columns of up to millions of rows."""
    rows = Grouped(np.arange(100_000, dtype=of)[::-1])
    tracemalloc.start()
    try:
        found = rows.within(70_000, 70_002)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tolist() == [29_999, 29_998]
    assert peak_bytes < 10_000
