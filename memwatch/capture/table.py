"""What a table of the schema is: its name and its columns, each with its unit, its kind and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "text", "float", "bool"]


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
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @classmethod
    def of(cls, name: str, doc: str, *columns: tuple[str, Kind, str]) -> Table:
        """Return a table of columns, each given as name, kind and meaning."""
        return cls(name, doc, tuple(Column(*column) for column in columns))
