"""A capture: the recorded tables as columns, whether still in memory or read from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.columns import ChunkedTable
from memwatch.capture.schema import RECORDED, RECORDED_BY_NAME

if TYPE_CHECKING:
    from memwatch.capture.columns import Columns, IntArray

INTEGER_TABLES = tuple(
    table.name for table in RECORDED if all(column.kind == "int" for column in table.columns)
)
NOT_RECORDED: Final = "not_recorded"
"""The key of `meta` with the data that the source of a capture lacks: `ops`, `uses`, `times`, ..."""


@dataclass(frozen=True)
class Note:
    """Something that memwatch could not see or did differently: its first op, its kind, and a sentence."""

    op: int
    kind: str
    text: str


@dataclass(frozen=True)
class Capture:
    """Recorded tables: `tables[name][column]` is an array of integers; text is interned in `strings`."""

    tables: dict[str, Columns]
    strings: list[str]
    meta: dict[str, Any]
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def from_columns(
        cls, columns: dict[str, list[IntArray]], strings: list[str], meta: dict[str, Any], notes: list[Note]
    ) -> Capture:
        """Build a capture from the columns of each integer table, in schema order; missing tables are empty."""
        tables: dict[str, Columns] = {}
        for name in INTEGER_TABLES:
            names = RECORDED_BY_NAME[name].names
            values = columns.get(name) or [np.empty(0, dtype=np.int64)] * len(names)
            tables[name] = dict(zip(names, values, strict=True))
        return cls(tables, strings, meta, notes)

    def rows(self, name: str) -> int:
        """Count the rows of a table."""
        table = self.tables[name]
        return table.rows if isinstance(table, ChunkedTable) else len(next(iter(table.values())))

    def is_zero(self, name: str, column: str) -> bool:
        """Return whether a column is 0 in all rows. This does not decode chunks."""
        table = self.tables[name]
        if isinstance(table, ChunkedTable):
            return table.bounds(column) == (0, 0)
        return not table[column].any()

    def lacks(self, what: str) -> bool:
        """Return True for data that the source cannot have, such as `ops` in an imported memory snapshot."""
        return what in self.meta.get(NOT_RECORDED, ())

    def text(self, ids: IntArray) -> list[str]:
        """Return the texts of string ids. -1 is empty text."""
        strings = self.strings
        return [strings[number] if 0 <= number < len(strings) else "" for number in ids.tolist()]


def empty_tables() -> dict[str, ChunkedTable]:
    """Return the integer tables, each without rows."""
    return {name: ChunkedTable(RECORDED_BY_NAME[name]) for name in INTEGER_TABLES}
