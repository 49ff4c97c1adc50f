"""Write the page of documentation that lists every record: `python -m memwatch.report.records.docs > docs/json.md`."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final, get_args, get_type_hints

from memwatch.report.records.schema import RECORDS

_HEAD: Final = """# JSON

Generated from `memwatch/report/records/schema.py` by `python -m memwatch.report.records.docs > docs/json.md`.

`summary`, `tree`, `stats`, `diff`, `plan`, `replay`, `estimate`, `tune` and `ps` print JSON with `--json`, and
`memwatch mcp CAPTURE` answers with the same records ([command_line.md](command_line.md)). `MEMWATCH=oom` writes an
`OutOfMemoryRecord` when memory runs out ([process.md](process.md#when-memory-runs-out)). Sizes are in bytes, times in
nanoseconds. A later version may add fields. It does not remove the fields on this page.
"""


def json_page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(map(_section, RECORDS))


def _section(record: type) -> str:
    fields = get_type_hints(record, include_extras=True)
    rows = "".join(f"| `{name}` | {_type(hint)} | {get_args(hint)[1]} |\n" for name, hint in fields.items())
    heading = f"\n## {record.__name__}\n\n{inspect.getdoc(record)}\n\n"
    return f"{heading}| field | type | meaning |\n| --- | --- | --- |\n{rows}"


def _type(hint: Any) -> str:
    """Return the name of a type as the page writes it, `list[StorageRecord]` for one."""
    bare = get_args(hint)[0]
    text = bare.__name__ if isinstance(bare, type) and not get_args(bare) else str(bare)
    return text.replace(f"{RECORDS[0].__module__}.", "").replace(" | None", " or null")


if __name__ == "__main__":
    sys.stdout.write(json_page())
