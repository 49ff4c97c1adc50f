"""Write the page of documentation that lists every table and column: `python -m memwatch.capture.docs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from memwatch.capture.derived import DERIVED, PANDAS_DTYPE
from memwatch.capture.schema import ACCESSES, EVIDENCE, FORMAT_VERSION, ORIGINS, OWNERS, PHASES, RECORDED
from memwatch.kinds.roles import CATEGORIES, ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.capture.schema import Column, Kind, Table

_UNITS: Final = {
    "_bytes": "bytes",
    "nbytes": "bytes",
    "_ns": "nanoseconds",
    "_s": "seconds",
    "_ratio": "ratio, 0 to 1",
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


def tables_page() -> str:
    """Return the page as Markdown."""
    values = (
        ("PHASES", PHASES),
        ("ACCESSES", ACCESSES),
        ("ORIGINS", ORIGINS),
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
    """Return the unit that ends a column's name, empty where it has none."""
    return next((text for ending, text in _UNITS.items() if column.name.endswith(ending)), "")


if __name__ == "__main__":
    sys.stdout.write(tables_page())
