"""Write the C++ header of the tables that C++ appends to: `python -m memwatch.capture.header`.

The native recorder fills these structs by the names of their fields. So a column that is renamed, moved or removed in
the schema stops C++ from compiling. A new column is 0 in every row until C++ fills it. The test that compares both
recorders (`tests/native/test_native_twins.py`) notices.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import ACCESSES, NONE, ORIGINS, PHASES, RECORDED_BY_NAME

if TYPE_CHECKING:
    from memwatch.capture.schema import Column, Table

ENUMS: Final = (
    ("Phase", PHASES, "What the program was doing when an op ran."),
    ("Access", ACCESSES, "How an op used a storage."),
    ("Origin", ORIGINS, "How a storage came to be known."),
)
TABLES: Final = ("ops", "nodes", "views", "lifts", "uses", "births", "deaths", "packs", "unpacks")
"""The tables whose rows C++ appends."""

_HEAD: Final = f"""\
// Generated from memwatch/capture/schema.py by `make schema`: change the schema, not this file.
//
// A row is a struct of 64-bit integers, in the order of its table's columns; docs/tables.md says what each means.
// Times are ticks of the recorder's clock: the flush turns a field `start_ticks` into the column `start_ns`.
#pragma once

#include <cstdint>

// clang-format off
namespace memwatch {{

/// "There is none" in any column: no module, no stack.
constexpr int64_t kNone = {NONE};
"""
_TAIL: Final = "\n}  // namespace memwatch\n"


def schema_header() -> str:
    """Return the header as text."""
    enums = "".join(_enum(*each) for each in ENUMS)
    rows = "".join(_row(RECORDED_BY_NAME[name]) for name in TABLES)
    return f"{_HEAD}{enums}{rows}{_TAIL}"


def _enum(name: str, words: tuple[str, ...], doc: str) -> str:
    members = ", ".join(f"k{name}{_camel(word)}" for word in words)
    return f"\n/// {doc}\nenum {name} : int64_t {{ {members} }};\n"


def _row(table: Table) -> str:
    fields = "".join(f"  int64_t {_field(column)};\n" for column in table.columns)
    return f"\n/// A row of the table `{table.name}`.\nstruct {_camel(table.name)}Row {{\n{fields}}};\n"


def _field(column: Column) -> str:
    return f"{column.name.removesuffix('_ns')}_ticks" if column.name.endswith("_ns") else column.name


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in words.split())


if __name__ == "__main__":
    sys.stdout.write(schema_header())
