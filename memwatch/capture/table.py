"""What a table of the schema is: its name and its columns, each with its unit, its kind and its meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["int", "text", "float", "bool"]


@dataclass(frozen=True, slots=True)
class Reference:
    """What the integers of a column refer to.

    Attributes:
        to: the table that has a row of this number; of `strings` the text of this id.
        choices: instead of a table: how many values there are, from 0.
        or_none: whether -1, "there is none", may stand in its place.
        is_count: whether the integer says how many rows came before, so that it may be the number of all rows.
        is_json: whether the text is JSON, which may be long; other texts are names.
    """

    to: str = ""
    choices: int = 0
    or_none: bool = False
    is_count: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (with its unit), its kind, what it means, and what its integers refer to, if anything."""

    name: str
    kind: Kind
    doc: str
    refers: Reference | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns in order, the names of these, and what a row is."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Know the names: of a long recording they are asked for once for each chunk."""
        object.__setattr__(self, "names", tuple(column.name for column in self.columns))

    @classmethod
    def of(
        cls, name: str, doc: str, *columns: tuple[str, Kind, str] | tuple[str, Kind, str, Reference]
    ) -> Table:
        """Return a table of columns, each given as name, kind and meaning, and what its integers refer to."""
        return cls(name, doc, tuple(Column(*column) for column in columns))
