"""Generate `docs/tables.md`, the C++ header `schema.h` and the module `rows.py` from the schema.

`python -m memwatch.capture.docs` prints the page, which lists every table and column. `python -m memwatch.capture.docs
header` prints the header, which has a struct for each table that C++ appends rows to. `python -m memwatch.capture.docs
rows` prints the module, which has a named tuple for each table whose rows Python writes or reads one by one.

The native recorder fills these structs by field name, in order. So C++ no longer compiles after you rename, reorder or
remove a column that it fills. A new column is 0 in every row until C++ fills it. To notice a missing value, add the
column to `COMPARED` in `tests/native/test_native_twins.py`, which compares both recorders.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from memwatch.capture.derived import DERIVED, PANDAS_DTYPE
from memwatch.capture.schema import (
    ACCESSES,
    EVIDENCE,
    FORMAT_VERSION,
    NONE,
    NUMBERS,
    ORIGINS,
    OWNERS,
    PHASES,
    RECORDED,
    RECORDED_BY_NAME,
)
from memwatch.kinds.roles import CATEGORIES, ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.capture.schema import Column, Kind, Table

_UNITS: Final = {
    "_bytes": "bytes",
    "nbytes": "bytes",
    "_ns": "nanoseconds",
    "_s": "seconds",
    "_ratio": "ratio",
}
_HEAD: Final = """# Tables

Generated from `memwatch/capture/schema.py` and `memwatch/capture/derived.py` by
`python -m memwatch.capture.docs > docs/tables.md`.

`-1` in an integer column means "there is none". A column's name ends with its unit.
"""
_DERIVED_HEAD: Final = """
## What you read

DataFrames of a profile: `prof.ops`, `prof.storages` and so on, also after `memwatch.load`, and the tables of
`memwatch transform CAPTURE csv --table NAME`.
"""
_RECORDED_HEAD: Final = f"""
## What the file holds

A capture is one SQLite file (format {FORMAT_VERSION}). Its tables `strings`, `meta` and `notes` are as below. All
other tables contain only integers, and the file stores them in its table `chunks`. Each row there has the values of one
column for a range of rows, as compressed differences (`memwatch/capture/columns.py`).
`memwatch.load(path).capture.tables` has them as arrays. Times are unix time.
"""
_ENUMS: Final = (
    ("Phase", PHASES, "What the program was doing when an op ran."),
    ("Access", ACCESSES, "How an op used a storage."),
    ("Origin", ORIGINS, "How a storage came to be known."),
    ("Number", NUMBERS, "Which argument of an op a number is."),
)
TABLES_OF_CPP: Final = (
    "ops",
    "nodes",
    "views",
    "lifts",
    "numbers",
    "uses",
    "births",
    "deaths",
    "packs",
    "unpacks",
)
"""The tables whose rows C++ appends."""
TABLES_OF_PYTHON: Final = (
    "resizes",
    "role_looks",
    "modules",
    "mode_changes",
    "compiled_calls",
    "compiled_nodes",
    "recomputes",
    "steps",
    "process",
    "process_parts",
    "edges",
    "vertices",
    "arguments",
    "operands",
)
"""The tables whose rows have a named tuple. The recorder in Python appends plain tuples to the tables of C++, and to
`roles`, `calls` and `holders`. These tables have many rows, and making a named tuple takes ten times as long."""
_HEADER_HEAD: Final = f"""\
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
_HEADER_TAIL: Final = "\n}  // namespace memwatch\n"
_ROWS_HEAD: Final = '''\
"""Rows of recorded tables as named tuples.

Generated from memwatch/capture/schema.py by `make schema`: change the schema, not this file. `docs/tables.md` says what
each column means. Times are ticks of the recorder's clock: the flush turns a field `start_ticks` into the column
`start_ns`.
"""

from __future__ import annotations

from typing import NamedTuple
'''


def tables_page() -> str:
    """Return the page of all tables as Markdown."""
    values = (
        ("PHASES", PHASES),
        ("ACCESSES", ACCESSES),
        ("ORIGINS", ORIGINS),
        ("NUMBERS", NUMBERS),
        ("OWNERS", OWNERS),
        ("ROLES", ROLES),
        ("CATEGORIES", CATEGORIES),
        ("EVIDENCE", EVIDENCE),
    )
    lists = "".join(f"\n- `{name}`: {', '.join(words)}" for name, words in values)
    derived = "".join(_section(table, "dtype", PANDAS_DTYPE) for table in DERIVED)
    recorded = "".join(_section(table, "type", {"int": "INTEGER", "text": "TEXT"}) for table in RECORDED)
    return f"{_HEAD}{lists}\n{_DERIVED_HEAD}{derived}{_RECORDED_HEAD}{recorded}"


def _section(table: Table, heading: str, types: Mapping[Kind, str]) -> str:
    columns = f"| column | {heading} | unit | meaning |\n| --- | --- | --- | --- |\n"
    rows = (
        f"| `{column.name}` | {types[column.kind]} | {unit(column)} | {column.doc.replace('|', '/')} |\n"
        for column in table.columns
    )
    return f"\n### {table.name}\n\n{table.doc}\n\n{columns}{''.join(rows)}"


def unit(column: Column) -> str:
    """Return the unit of a column by the ending of its name; empty if the name has no such ending."""
    return next((text for ending, text in _UNITS.items() if column.name.endswith(ending)), "")


def schema_header() -> str:
    """Return the text of the C++ header."""
    enums = "".join(_enum(*each) for each in _ENUMS)
    rows = "".join(_row(RECORDED_BY_NAME[name]) for name in TABLES_OF_CPP)
    return f"{_HEADER_HEAD}{enums}{rows}{_HEADER_TAIL}"


def rows_module() -> str:
    """Return the text of the module with the named tuples."""
    classes = []
    for name in TABLES_OF_PYTHON:
        table = RECORDED_BY_NAME[name]
        fields = "".join(f"    {_field(column)}: int{_ignore(column)}\n" for column in table.columns)
        classes.append(
            f'\n\nclass {_camel(name)}Row(NamedTuple):\n    """A row of the table `{name}`."""\n\n{fields}'
        )
    return _ROWS_HEAD + "".join(classes)


def _ignore(column: Column) -> str:
    """Return a comment for the type checker if a column has the name of a method of tuples."""
    return "  # type: ignore[assignment]" if hasattr(tuple, column.name) else ""


def _enum(name: str, words: tuple[str, ...], doc: str) -> str:
    members = ", ".join(f"k{name}{_camel(word)}" for word in words)
    return f"\n/// {doc}\nenum {name} : int64_t {{ {members} }};\n"


def _row(table: Table) -> str:
    fields = "".join(f"  int64_t {_field(column)};\n" for column in table.columns)
    return f"\n/// A row of the table `{table.name}`.\nstruct {_camel(table.name)}Row {{\n{fields}}};\n"


def _field(column: Column) -> str:
    return f"{column.name.removesuffix('_ns')}_ticks" if column.name.endswith("_ns") else column.name


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in words.replace("_", " ").split())


if __name__ == "__main__":
    _texts = {"header": schema_header, "rows": rows_module}
    sys.stdout.write(_texts.get(" ".join(sys.argv[1:]), tables_page)())
