"""The page of tables is the schema's, and the schema describes every column."""

from __future__ import annotations

from pathlib import Path

from memwatch.capture.derived import DERIVED
from memwatch.capture.docs import tables_page, unit
from memwatch.capture.schema import RECORDED

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def test_the_page_is_fresh():
    """docs/tables.md equals the output of `python -m memwatch.capture.docs`."""
    assert PAGE.read_text(encoding="utf-8") == tables_page()


def test_every_column_is_described_once():
    """Column names are unique within a table. Each column is described, and sizes and times have a unit."""
    for table in (*RECORDED, *DERIVED):
        assert table.doc
        assert len(set(table.names)) == len(table.names)
        for column in table.columns:
            assert column.doc
            if "nanoseconds" in column.doc:
                assert unit(column) == "nanoseconds", column
            if column.name.endswith("bytes"):
                assert unit(column) == "bytes"
