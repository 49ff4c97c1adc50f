"""What a table of the schema is: columns, each with its kind and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["int", "text", "float", "bool"]
PANDAS_DTYPE: Final[dict[Kind, str]] = {"int": "int64", "text": "str", "float": "float64", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (with its unit), its kind, and what it means."""

    name: str
    kind: Kind
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns in order and what a row is."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Give the column names in order."""
        return tuple(column.name for column in self.columns)


def make_table(name: str, doc: str, *columns: tuple[str, Kind, str]) -> Table:
    """Return a table from the name, kind and meaning of each of its columns."""
    return Table(name, doc, tuple(Column(*column) for column in columns))
